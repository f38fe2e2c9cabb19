"""Moved to `otel_llm.backtest.journal_recordings`; this name keeps working."""

from otel_llm.backtest.journal_recordings import *  # noqa: F403
