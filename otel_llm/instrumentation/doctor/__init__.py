"""`otel-llm doctor`: find problems of an environment, or of a program. Needs the base install only."""
