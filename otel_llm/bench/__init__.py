"""Load and capacity from outside; `paced_server` has moved to `otel_llm.demo` and keeps its name here."""
