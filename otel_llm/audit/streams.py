"""Moved to `otel_llm.audit.input.stream_batch`; this name keeps working."""

from otel_llm.audit.input.stream_batch import *  # noqa: F403
