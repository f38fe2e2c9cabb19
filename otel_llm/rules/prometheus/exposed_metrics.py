"""Names and bounds that the Prometheus rules and the metrics share."""

from __future__ import annotations

from typing import Final

COLLECTOR_PREFIX: Final = "otel_llm_collector_"
"""The prefix of the collector's own metrics."""
FLUIDITY_BUCKETS: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.99, 1.0)
"""Upper bounds of the histogram of fluidity indices; a rule about a target needs a bucket that ends there."""
