"""Moved to `otel_llm.backtest.backtest`; this name keeps working."""

from otel_llm.backtest.backtest import *  # noqa: F403
