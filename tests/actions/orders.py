"""Orders and clocks for the tests of acting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from otel_llm.actions.execute.events import Candidate, Order
from otel_llm.actions.execute.executor import Reply
from otel_llm.rules.decisions.decision_records import Decision
from otel_llm.rules.files.ruleset import Verb
from otel_llm.shared.clock import FakeClock

NOW_NS = 1_800_000_000_000_000_000
MS = 1_000_000
INSTANCE = "a"


def decision(
    number: int = 1,
    *,
    action: Verb | None = "webhook",
    now_ns: int = NOW_NS,
    ttl_ns: int | None = 400 * MS,
    instance: str = INSTANCE,
    arguments: Mapping[str, Any] | None = None,
    flip_ns: int | None = None,
    outcome: Any = "unconfirmed",
    rule_hash: str = "0123456789abcdef",
    stream: bool = True,
) -> Decision:
    return Decision(
        now_ns=now_ns,
        flip_ns=now_ns if flip_ns is None else flip_ns,
        offset_ns=0,
        group="g",
        rule="R",
        rule_hash=rule_hash,
        scope="stream" if stream else "instance",
        stream=(number.to_bytes(16, "big"), number.to_bytes(8, "big"), "default", 0) if stream else None,
        identity={"slo_class": "chat", "model": "m", "instance": instance, "measured_at": "client"},
        state="firing" if action is not None else "resolved",
        action=action,
        mode="enforce" if action is not None else None,
        outcome=outcome,
        facts={"gap_seconds": 0.7, "ttft_seconds": None},
        fact_age_ns=20 * MS,
        budget={},
        arguments=arguments or {},
        ttl_ns=ttl_ns,
    )


def order(
    number: int = 1, *, request_id: str | None = None, candidates: tuple[Candidate, ...] = (), **of: Any
) -> Order:
    return Order(decision(number, **of), request_id, candidates)


@dataclass
class Ticking(FakeClock):
    """A clock that goes on by `step_ns` at each look, and not otherwise.

    Who waits for an instant comes to it whenever it began to wait, and a machine that stands still takes no time.
    """

    at_ns: int = NOW_NS
    step_ns: int = 5 * MS

    def now_ns(self) -> int:
        return self.pass_s(self.step_ns / 1e9)


@dataclass
class Scripted:
    """An executor that replies from a script, and notes what it was asked."""

    replies: list[Reply | Exception] = field(default_factory=list)
    timeout_s: float = 5.0
    exclusive: bool = False
    in_stream: bool = False
    target: str = "receiver:scripted"
    seen: bool | None = None
    asked: list[str] = field(default_factory=list)

    def attempt(self, order: Order, now_ns: int, timeout_s: float) -> Reply:
        self.asked.append(order.id)
        reply = self.replies.pop(0) if self.replies else Reply("accepted")
        if isinstance(reply, Exception):
            raise reply
        return reply

    def check(self, timeout_s: float) -> bool | None:
        return self.seen
