"""Moved to `otel_llm.audit.compare.tiers`; this name keeps working."""

from otel_llm.audit.compare.tiers import *  # noqa: F403
