"""Moved to `otel_llm.audit.compare.sweep`; this name keeps working."""

from otel_llm.audit.compare.sweep import *  # noqa: F403
