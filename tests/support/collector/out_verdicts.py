"""Requests judged by the real arithmetic, and what a plain loop would count of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from otel_llm.live.user_metrics import EndedReply, Key, UserMetrics
from otel_llm.rules.files.slo_file import load_slo
from otel_llm.slo.request import judge
from otel_llm.slo.verdict import Verdict

T0_NS = 1_790_000_000_000_000_000
MS = 1_000_000
CHAT = load_slo().get("chat")
KEY = Key("chat", "m", "client", "")


def judged(gaps_ms: Sequence[float], outcome: str = "completed", end_ms: float = 0) -> tuple[Verdict, Any]:
    """Return the verdict on a request whose tokens come after these gaps, and its token times."""
    times = T0_NS + np.cumsum([round(gap * MS) for gap in gaps_ms], dtype=np.int64)
    end_ns = int(times[-1]) if len(times) else T0_NS
    return judge(times.tolist(), T0_NS, end_ns + round(end_ms * MS), outcome, CHAT), times


def count(metrics: UserMetrics, key: Key, verdict: Verdict, times: npt.NDArray[np.int64]) -> None:
    """Count a verdict as the evaluator does."""
    metrics.judged(key, [EndedReply(verdict.outcome, verdict.met, verdict, np.diff(times).tolist())])


def samples(*metrics: UserMetrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return the samples of several collectors, added up."""
    added: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for one in metrics:
        for family in one.families():
            for sample in family.samples:
                at = (sample.name, frozenset(sample.labels.items()))
                added[at] = added.get(at, 0) + sample.value
    return added
