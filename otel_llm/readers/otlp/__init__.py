"""From OTLP trace export requests to records."""
