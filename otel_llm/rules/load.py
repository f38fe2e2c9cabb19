"""Moved to `otel_llm.rules.files.load`; this name keeps working."""

from otel_llm.rules.files.load import *  # noqa: F403
