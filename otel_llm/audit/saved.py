"""Moved to `otel_llm.audit.report.saved`; this name keeps working."""

from otel_llm.audit.report.saved import *  # noqa: F403
