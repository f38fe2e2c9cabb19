"""Moved to `otel_llm.actions.delivery.signing`; this name keeps working."""

from otel_llm.actions.delivery.signing import *  # noqa: F403
