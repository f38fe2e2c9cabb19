"""Moved to `otel_llm.audit.calibrate.alpha_fit`; this name keeps working."""

from otel_llm.audit.calibrate.alpha_fit import *  # noqa: F403
