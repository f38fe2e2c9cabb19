"""Moved to `otel_llm.audit.calibrate.churn`; this name keeps working."""

from otel_llm.audit.calibrate.churn import *  # noqa: F403
