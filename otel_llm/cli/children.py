"""Moved to `otel_llm.demo.children`; this name keeps working."""

from otel_llm.demo.children import *  # noqa: F403
