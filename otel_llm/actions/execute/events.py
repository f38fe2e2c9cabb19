"""Requested actions as CloudEvents: the sender, the action, its request or instance, the reason and the expiry.

Source: CloudEvents 1.0.2, "JSON Event Format", structured mode.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from otel_llm.rules.files.ruleset import DEFAULT_TTL_NS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_llm.formats.records import StreamKey
    from otel_llm.rules.decisions.decision_records import Decision

CONTENT_TYPE: Final = "application/cloudevents+json; charset=utf-8"
TYPE_PREFIX: Final = "io.otel_llm.action."


@dataclass(frozen=True, slots=True)
class Candidate:
    """A stream that `preempt` may take, as it was at the decision."""

    key: StreamKey
    slo_class: str
    priority: int
    runway_seconds: float

    def record(self) -> dict[str, Any]:
        """Return it as in a record; its `score` is the order of the choice: lowest priority, then most runway."""
        trace_id, span_id, tenant, choice = self.key
        return {
            "trace_id": trace_id.hex(),
            "span_id": span_id.hex(),
            "tenant": tenant,
            "choice": choice,
            "slo_class": self.slo_class,
            "score": {"priority": self.priority, "runway_seconds": self.runway_seconds},
        }


@dataclass(frozen=True, slots=True)
class Order:
    """One action to do: a decision, and what was known at its time that the decision does not hold.

    `request_id`: the engine's id of the request, None if telemetry does not have it; `candidates`: the streams that
    `preempt` may take, the first is taken.
    """

    decision: Decision
    request_id: str | None = None
    candidates: Sequence[Candidate] = ()
    id: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", action_id(self.decision))

    @property
    def verb(self) -> str:
        """Return the verb of the action."""
        return str(self.decision.action)

    @property
    def instance(self) -> str:
        """Return the instance of the action, "" if there is none."""
        return self.decision.identity.get("instance", "")

    @property
    def expires_ns(self) -> int:
        """Return the instant of its expiry, on the collector's axis."""
        ttl_ns = self.decision.ttl_ns
        return self.decision.now_ns + (DEFAULT_TTL_NS if ttl_ns is None else ttl_ns)


def action_id(decision: Decision) -> str:
    """Return the id of an action: the same however often it is sent, and for every process that decides it.

    It is a hash over the rule's own hash, the decision's subject, the instant of the flip, the action, its index among
    the rule's actions, and the attempt.
    """
    about = decision.subject if decision.stream is None else _stream(decision)
    action = [decision.action, sorted(decision.arguments.items()), decision.action_index, decision.attempt]
    what = [decision.rule_hash, about, decision.flip_ns, *action]
    text = json.dumps(what, separators=(",", ":"), ensure_ascii=True)
    return "act_" + hashlib.sha256(text.encode()).hexdigest()[:32]


def cloud_event(order: Order, source: str, relay: str = "") -> bytes:
    """Return the body: a CloudEvent in structured mode. It holds no text of a prompt or a reply.

    `relay`: the name of the relay and start-up that it is for, "" for none.
    """
    decision = order.decision
    if decision.stream is None:
        labels = ",".join(f"{name}={value}" for name, value in sorted(decision.identity.items()))
        subject, about = f"{decision.scope}/{labels}", {}
    else:
        trace_id, span_id, tenant, choice = _stream(decision)
        subject = f"request/{trace_id}/{span_id}/{choice}"
        ids = {"trace_id": trace_id, "span_id": span_id, "tenant": tenant, "choice": choice}
        about = {"request": {**ids, "id": order.request_id}}
    data: dict[str, Any] = {
        "action": order.verb,
        "arguments": {name: value for name, value in decision.arguments.items() if name != "only_if"},
        "expires_at": rfc3339(order.expires_ns),
        "expires_unix_nano": order.expires_ns,
        "flip_unix_nano": decision.flip_ns,
        "now_offset_nano": decision.offset_ns,
        "group": decision.group,
        "rule": decision.rule,
        "rule_hash": decision.rule_hash,
        "scope": decision.scope,
        **about,
        "labels": dict(decision.identity),
        "facts": dict(decision.facts),
    }
    if relay:
        data["relay"] = relay
    if order.verb == "preempt":
        data["candidates"] = [candidate.record() for candidate in order.candidates]
    event = {
        "specversion": "1.0",
        "id": order.id,
        "source": source,
        "type": f"{TYPE_PREFIX}{order.verb}.v1",
        "subject": subject,
        "time": rfc3339(decision.now_ns),
        "datacontenttype": "application/json",
        "data": _finite(data),
    }
    return json.dumps(event, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def _stream(decision: Decision) -> tuple[str, str, str, int]:
    assert decision.stream is not None  # noqa: S101
    trace_id, span_id, tenant, choice = decision.stream
    return trace_id.hex(), span_id.hex(), tenant, choice


def rfc3339(unix_ns: int) -> str:
    """Return an instant as RFC 3339 has it, in UTC, to the nanosecond."""
    second, ns = divmod(unix_ns, 10**9)
    return f"{datetime.fromtimestamp(second, UTC):%Y-%m-%dT%H:%M:%S}.{ns:09d}Z"


def _finite(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts with null for numbers that JSON does not have."""
    facts = {
        name: None if isinstance(value, float) and not -float("inf") < value < float("inf") else value
        for name, value in data["facts"].items()
    }
    return {**data, "facts": facts}
