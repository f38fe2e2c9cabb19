"""Moved to `otel_llm.instrumentation.engines.sglang`; this name keeps working."""

from otel_llm.instrumentation.engines.sglang import *  # noqa: F403
