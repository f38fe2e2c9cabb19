"""The settings of the collector, and the file they are read from."""

from otel_llm.collector.config.settings import *  # noqa: F403
