"""The receivers: OTLP over HTTP and gRPC, admission control, and what a refusal answers."""
