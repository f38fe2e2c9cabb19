"""In the application: segments become OTLP and leave, through a bounded queue, with retries and counted drops."""
