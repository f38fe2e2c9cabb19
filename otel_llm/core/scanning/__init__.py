"""Scan the bytes of OTLP trace export requests into columns, and count their small parts."""
