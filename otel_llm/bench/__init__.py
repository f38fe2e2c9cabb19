"""Load from outside, to come; `paced_server` is in `otel_llm.demo` and keeps its name here."""
