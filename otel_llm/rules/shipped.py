"""Moved to `otel_llm.rules.files.shipped`; this name keeps working."""

from otel_llm.rules.files.shipped import *  # noqa: F403
