"""OTLP over gRPC in a process of its own, and how the evaluator's process speaks with it."""
