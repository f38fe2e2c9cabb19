"""Moved to `otel_llm.audit.compare.bootstrap`; this name keeps working."""

from otel_llm.audit.compare.bootstrap import *  # noqa: F403
