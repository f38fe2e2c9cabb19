"""Decisions, their records and files."""

from otel_llm.rules.decisions.decision_records import *  # noqa: F403
