"""Moved to `otel_llm.instrumentation.engines.transformers`; this name keeps working."""

from otel_llm.instrumentation.engines.transformers import *  # noqa: F403
