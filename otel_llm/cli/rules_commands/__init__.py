"""`otel-llm rules` and its commands."""
