"""Compare recordings: differences, gates, tiers, groups, sweeps."""

from otel_llm.audit.compare.comparison import *  # noqa: F403
