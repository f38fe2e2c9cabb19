"""Decisions as the engine makes them, for the tests of alerts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from otel_llm.rules.decisions.decision_records import Decision, Outcome
from otel_llm.rules.files.ruleset import Mode, Verb
from otel_llm.rules.language.facts import Scope

S = 1_000_000_000
T0 = 1_790_000_000 * S
"""When the collector's fake clock begins."""
SKEW_NS = 7 * S
"""How far the streams' clock is ahead of the collector's."""


def decision(
    number: int | str,
    at_s: float,
    state: Literal["firing", "resolved"] = "firing",
    *,
    name: str = "Starving",
    by: Iterable[str] = ("slo_class", "model", "instance"),
    rule: str = "ReaderStarving",
    outcome: Outcome | None = None,
    action: Verb | None = "alert",
    mode: Mode | None = "enforce",
    scope: Scope = "stream",
    decided_s: float | None = None,
    **identity: str,
) -> Decision:
    """Return a decision about stream `number` (of another scope: its name), that flipped at T0 + `at_s`."""
    stream = None
    labels = {"slo_class": "chat", "model": "m", "instance": "a", "measured_at": "client", **identity}
    if scope == "stream":
        assert isinstance(number, int)
        stream = (number.to_bytes(16, "big"), number.to_bytes(8, "big"), "default", 0)
    else:
        labels = identity
    flip_ns = T0 + round(at_s * S)
    arguments: dict[str, Any] = {"name": name, "by": tuple(by)}
    ends = state == "resolved"
    return Decision(
        now_ns=flip_ns if decided_s is None else T0 + round(decided_s * S),
        flip_ns=flip_ns + SKEW_NS,
        offset_ns=SKEW_NS,
        group="chat",
        rule=rule,
        rule_hash=rule.lower(),
        scope=scope,
        stream=stream,
        identity=labels,
        state=state,
        action=None if ends else action,
        mode=None if ends else mode,
        outcome=outcome or ("resolved" if ends else "done"),
        facts={"gap_seconds": 0.7, "runway_seconds": None},
        fact_age_ns=0,
        budget={},
        arguments={} if ends else arguments,
    )
