"""The application's exporter: segments are sent as OTLP through a bounded queue, with retries and counted drops."""
