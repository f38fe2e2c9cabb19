"""Moved to `otel_llm.audit.report.charts.timeline`; this name keeps working."""

from otel_llm.audit.report.charts.timeline import *  # noqa: F403
