"""Egress over OTLP: forwarded exports, the collector's metrics, closed windows."""
