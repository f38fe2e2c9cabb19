"""The service: OTLP in, journal, live evaluation, metrics out."""
