"""Moved to `otel_llm.journal.reader`; this name keeps working."""

from otel_llm.journal.reader import *  # noqa: F403
