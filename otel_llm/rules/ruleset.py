"""Moved to `otel_llm.rules.files.ruleset`; this name keeps working."""

from otel_llm.rules.files.ruleset import *  # noqa: F403
