"""Load from outside (not yet here); `paced_server` has moved to `otel_llm.demo` and keeps its name here."""
