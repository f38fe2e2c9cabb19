"""Moved to `otel_llm.instrumentation.engines.vllm`; this name keeps working."""

from otel_llm.instrumentation.engines.vllm import *  # noqa: F403
