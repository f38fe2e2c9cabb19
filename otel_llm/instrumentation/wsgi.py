"""The public path of the WSGI middleware."""

from otel_llm.instrumentation.server.wsgi import StreamMiddleware

__all__ = ["StreamMiddleware"]
