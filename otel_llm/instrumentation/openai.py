"""Moved to `otel_llm.instrumentation.stacks.openai`; this name keeps working."""

from otel_llm.instrumentation.stacks.openai import *  # noqa: F403
