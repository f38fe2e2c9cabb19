"""Backtests and unit tests of rules: the decisions that they would have made."""
