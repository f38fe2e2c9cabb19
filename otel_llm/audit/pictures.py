"""Moved to `otel_llm.audit.report.charts.delivery_chart`; this name keeps working."""

from otel_llm.audit.report.charts.delivery_chart import *  # noqa: F403
