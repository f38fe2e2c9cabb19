"""The HTML report: one page with all results of an audit."""

from otel_llm.audit.report.report import *  # noqa: F403
