"""`otel-llm doctor`: what is wrong with an environment, or with a program. Needs the base install only."""
