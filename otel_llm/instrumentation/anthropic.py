"""Moved to `otel_llm.instrumentation.stacks.anthropic`; this name keeps working."""

from otel_llm.instrumentation.stacks.anthropic import *  # noqa: F403
