"""Moved to `otel_llm.audit.calibrate.prefill`; this name keeps working."""

from otel_llm.audit.calibrate.prefill import *  # noqa: F403
