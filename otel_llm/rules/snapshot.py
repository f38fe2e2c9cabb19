"""Moved to `otel_llm.rules.language.snapshot`; this name keeps working."""

from otel_llm.rules.language.snapshot import *  # noqa: F403
