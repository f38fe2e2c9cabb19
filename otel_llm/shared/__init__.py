"""Modules that several packages share: the clock, files, secrets, OTLP targets, web ports."""
