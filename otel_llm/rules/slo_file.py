"""Moved to `otel_llm.rules.files.slo_file`; this name keeps working."""

from otel_llm.rules.files.slo_file import *  # noqa: F403
