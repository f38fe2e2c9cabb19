"""What leaves the collector over OTLP: exports as they came, its metrics, closed windows."""
