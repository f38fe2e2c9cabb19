"""Moved to `otel_llm.instrumentation.stacks.aiohttp`; this name keeps working."""

from otel_llm.instrumentation.stacks.aiohttp import *  # noqa: F403
