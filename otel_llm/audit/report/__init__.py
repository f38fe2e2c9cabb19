"""The HTML report: one page of everything an audit found."""

from otel_llm.audit.report.report import *  # noqa: F403
