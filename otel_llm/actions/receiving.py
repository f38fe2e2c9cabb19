"""Moved to `otel_llm.actions.execute.action_receiver`; this name keeps working."""

from otel_llm.actions.execute.action_receiver import *  # noqa: F403
