"""Moved to `otel_llm.backtest.backtest_evaluator`; this name keeps working."""

from otel_llm.backtest.backtest_evaluator import *  # noqa: F403
