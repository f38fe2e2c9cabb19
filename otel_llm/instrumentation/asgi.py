"""Moved to `otel_llm.instrumentation.server.asgi`; this name keeps working."""

from otel_llm.instrumentation.server.asgi import *  # noqa: F403
