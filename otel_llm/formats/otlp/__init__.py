"""Read OTLP trace export requests, in protobuf or JSON, to records."""
