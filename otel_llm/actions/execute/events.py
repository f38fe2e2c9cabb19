"""What is asked of others, as a CloudEvent: who asks what for which request or instance, why, and until when.

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

    from otel_llm.rules.decisions.decision_records import Decision

CONTENT_TYPE: Final = "application/cloudevents+json; charset=utf-8"
TYPE_PREFIX: Final = "io.otel_llm.action."


@dataclass(frozen=True, slots=True)
class Candidate:
    """A stream that `preempt` could take, as it was at the decision."""

    trace_id: str
    span_id: str
    choice: int
    slo_class: str
    priority: int
    runway_seconds: float

    def record(self) -> dict[str, Any]:
        """Return it as a record has it; its `score` is the order of the choice: lowest priority, then most runway."""
        return {
            "trace_id": self.trace_id,
            "span_id": self.span_id,
            "choice": self.choice,
            "slo_class": self.slo_class,
            "score": {"priority": self.priority, "runway_seconds": self.runway_seconds},
        }


@dataclass(frozen=True, slots=True)
class Order:
    """One action that is to be done: a decision, and what was known when it was made that the decision does not say.

    `request_id`: what the engine calls the request, None where its telemetry does not say; `candidates`: whom
    `preempt` could take, the first is taken.
    """

    decision: Decision
    request_id: str | None = None
    candidates: Sequence[Candidate] = ()
    id: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", action_id(self.decision))

    @property
    def verb(self) -> str:
        """Return what is to be done."""
        return str(self.decision.action)

    @property
    def instance(self) -> str:
        """Return the instance that it is about, "" where there is none."""
        return self.decision.identity.get("instance", "")

    @property
    def expires_ns(self) -> int:
        """Return when it is worth nothing any more, on the collector's axis."""
        ttl_ns = self.decision.ttl_ns
        return self.decision.now_ns + (DEFAULT_TTL_NS if ttl_ns is None else ttl_ns)


def action_id(decision: Decision) -> str:
    """Return what identifies an action, the same however often it is sent and whoever decides it again.

    It is a hash over the rule's own hash, what the decision is about, the instant of the flip and the action.
    """
    about = decision.subject if decision.stream is None else _stream(decision)
    what = [decision.rule_hash, about, decision.flip_ns, decision.action, sorted(decision.arguments.items())]
    text = json.dumps(what, separators=(",", ":"), ensure_ascii=True)
    return "act_" + hashlib.sha256(text.encode()).hexdigest()[:32]


def cloud_event(order: Order, source: str) -> bytes:
    """Return the body: a CloudEvent in structured mode. It holds no text of a prompt or a reply."""
    decision = order.decision
    if decision.stream is None:
        labels = ",".join(f"{name}={value}" for name, value in sorted(decision.identity.items()))
        subject, about = f"{decision.scope}/{labels}", {}
    else:
        trace_id, span_id, choice = _stream(decision)
        subject = f"request/{trace_id}/{span_id}/{choice}"
        request = {"trace_id": trace_id, "span_id": span_id, "choice": choice, "id": order.request_id}
        about = {"request": request}
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


def _stream(decision: Decision) -> tuple[str, str, int]:
    assert decision.stream is not None  # noqa: S101
    trace_id, span_id, choice = decision.stream
    return trace_id.hex(), span_id.hex(), choice


def rfc3339(unix_ns: int) -> str:
    """Return an instant as RFC 3339 has it, in UTC, to the nanosecond."""
    second, ns = divmod(unix_ns, 10**9)
    return f"{datetime.fromtimestamp(second, UTC):%Y-%m-%dT%H:%M:%S}.{ns:09d}Z"


def _finite(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts that JSON has no number for as null."""
    facts = {
        name: None if isinstance(value, float) and not -float("inf") < value < float("inf") else value
        for name, value in data["facts"].items()
    }
    return {**data, "facts": facts}
