"""otel-llm: what the readers of a streaming LLM product feel, live."""
