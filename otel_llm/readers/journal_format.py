"""Moved to `otel_llm.readers.io.journal_format`; this name keeps working."""

from otel_llm.readers.io.journal_format import *  # noqa: F403
