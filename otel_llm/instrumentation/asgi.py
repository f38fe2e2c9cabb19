"""The public path of the ASGI middleware."""

from otel_llm.instrumentation.server.asgi import StreamMiddleware

__all__ = ["StreamMiddleware"]
