"""Moved to `otel_llm.instrumentation.stacks.httpx`; this name keeps working."""

from otel_llm.instrumentation.stacks.httpx import *  # noqa: F403
