"""Moved to `otel_llm.audit.report.html_page`; this name keeps working."""

from otel_llm.audit.report.html_page import *  # noqa: F403
