"""Backtests and unit tests of rules: what they would have decided."""
