"""Moved to `otel_llm.instrumentation.stacks.litellm`; this name keeps working."""

from otel_llm.instrumentation.stacks.litellm import *  # noqa: F403
