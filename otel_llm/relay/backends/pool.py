"""The parts that all requests of a relay share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otel_llm.relay.backends.backends import Backends
    from otel_llm.relay.backends.expected_lengths import ExpectedLengths
    from otel_llm.relay.backends.hedge_budget import HedgeBudget
    from otel_llm.relay.backends.upstream import Upstream
    from otel_llm.relay.loop_lag import LoopLag
    from otel_llm.relay.metrics import RelayMetrics
    from otel_llm.relay.settings import RelaySettings


@dataclass(frozen=True, slots=True)
class Pool:
    """The backends of a relay and the client for them."""

    upstream: Upstream
    backends: Backends
    settings: RelaySettings
    metrics: RelayMetrics
    lengths: ExpectedLengths
    lag: LoopLag
    hedges: HedgeBudget
