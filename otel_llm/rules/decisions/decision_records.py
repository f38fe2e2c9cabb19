"""Decisions, and their records: one JSON line each, as docs/rules.md describes them."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from otel_llm.formats.records import DEFAULT_TENANT, tenant_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from otel_llm.formats.records import StreamKey
    from otel_llm.rules.files.ruleset import Mode, Verb
    from otel_llm.rules.language.facts import Scope
    from otel_llm.rules.language.tokens import Value

Outcome = Literal[
    "shadow", "sent", "queued", "dropped: table full", "done", "unconfirmed", "failed", "budget", "only_if", "expired",
    "resolved", "ended", "refuted",
]  # fmt: skip


FIRST_KEY: Final = "time_unix_nano"
"""The first key of every record's line."""
LEFT_OUT: Final = "left_out"
"""The key that tells a count of decisions without a record (`left_out.py`) from the record of a decision."""
Labels = tuple[tuple[str, str], ...]
"""The subject of a rule of scope instance or class: names and values, sorted by name."""
Subject: TypeAlias = "StreamKey | Labels"


class Decided(NamedTuple):
    """The identity of a decision: after a crash the same one is not decided again.

    `action_index` is None for the end of a firing; `attempt` counts the attempts at an action, from 1.
    """

    rule_hash: str
    subject: Subject
    flip_unix_nano: int
    state: str
    action_index: int | None
    attempt: int


@dataclass(frozen=True, slots=True)
class ComparedInstance:
    """An instance that a stream could have been moved to: its score by a placement, and the reason for it."""

    instance: str
    score: Mapping[str, float]
    reason: str = ""

    def record(self) -> dict[str, Any]:
        """Return it as in a record; a number that JSON does not have is null."""
        score = {name: value if math.isfinite(value) else None for name, value in self.score.items()}
        return {"instance": self.instance, "score": score, **({"reason": self.reason} if self.reason else {})}


@dataclass(frozen=True, slots=True)
class Migration:
    """The course of a `migrate`, for its record.

    `source`, `to`: instances; `to` None if there was no other to move to. `tokens_carried`: output tokens from which
    the destination went on. `gap_seconds`: from the last write with text to the first after it, before the first token
    since the commit; None if no text came. `candidates`: the instances that were compared, best first.
    """

    source: str
    to: str | None
    tokens_carried: int | None = None
    gap_seconds: float | None = None
    candidates: Sequence[ComparedInstance] = ()

    def record(self) -> dict[str, Any]:
        """Return the fields of the record."""
        compared = {"candidates": [one.record() for one in self.candidates]} if self.candidates else {}
        return {
            **compared,
            "from": self.source,
            "to": self.to,
            "tokens_carried": self.tokens_carried,
            "gap_seconds": self.gap_seconds,
        }


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision about one stream, instance or class: an action of a rule that began to fire, or its firing's end.

    `now_ns`: the collector's now when it was made; `flip_ns`: the first instant of the new state, on the stream's own
    axis; `offset_ns`: the stream's now less the collector's. `stream` is None for the scopes instance and class, which
    `identity` then tells apart: the labels; of a stream its class, model, instance and where it is measured. `facts`:
    those that decided, at the flip; None if missing. `arguments` and `ttl_ns` are for the dispatcher and the
    console, not part of the record. `action_index`: that of the action among the rule's; `attempt`: counted from 1.
    `findings`: further fields of the record, known once the action was done: those of a `Migration`, a line of detail.
    """

    now_ns: int
    flip_ns: int
    offset_ns: int
    group: str
    rule: str
    rule_hash: str
    scope: Scope
    stream: StreamKey | None
    identity: Mapping[str, str]
    state: Literal["firing", "resolved"]
    action: Verb | None
    mode: Mode | None
    outcome: Outcome
    facts: Mapping[str, Value | None]
    fact_age_ns: int
    budget: Mapping[str, bool]
    arguments: Mapping[str, Any]
    ttl_ns: int | None = None
    action_index: int | None = None
    attempt: int = 1
    findings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> Decided:
        """Return the identity of the decision."""
        return Decided(self.rule_hash, self.subject, self.flip_ns, self.state, self.action_index, self.attempt)

    @property
    def tenant(self) -> str:
        """Return the tenant of the stream, or of all streams of the instance or class."""
        return self.identity.get("tenant", DEFAULT_TENANT) if self.stream is None else self.stream[2]

    @property
    def subject(self) -> Subject:
        """Return the stream, or the labels, of the decision."""
        return tuple(sorted(self.identity.items())) if self.stream is None else self.stream

    def record(self, time_unix_nano: int | None = None) -> dict[str, Any]:
        """Return the record, its fields in the order of docs/rules.md; by default its time is that of the decision."""
        about: dict[str, Any] = {"labels": dict(self.identity)}
        if self.stream is not None:
            trace_id, span_id, _, choice = self.stream
            about = {"trace_id": trace_id.hex(), "span_id": span_id.hex(), "choice": choice}
        return {
            FIRST_KEY: self.now_ns if time_unix_nano is None else time_unix_nano,
            "flip_unix_nano": self.flip_ns,
            "now_offset_nano": self.offset_ns,
            "group": self.group,
            "rule": self.rule,
            "rule_hash": self.rule_hash,
            "scope": self.scope,
            **about,
            "tenant": self.tenant,
            "state": self.state,
            "action": self.action,
            "mode": self.mode,
            "outcome": self.outcome,
            "facts": dict(self.facts),
            "fact_age_seconds": self.fact_age_ns / 1e9,
            "budget": dict(self.budget),
            "action_index": self.action_index,
            "attempt": self.attempt,
            **self.findings,
        }

    def __str__(self) -> str:
        if self.stream is None:
            about = ", ".join(f"{name} {value}" for name, value in self.identity.items())
        else:
            trace_id, _, tenant, choice = self.stream
            who = f"{self.identity.get('slo_class') or '-'} {self.identity.get('model') or '-'}"
            about = f"{who} trace {trace_id.hex()}" + (f" choice {choice}" if choice else "") + tenant_words(tenant)
        name = self.arguments.get("name")
        what = self.state if self.action is None else f"{self.action} {name}" if name else self.action
        facts = ", ".join(f"{fact} {shown(value)}" for fact, value in self.facts.items())
        return f"{self.rule}: {what}: {self.outcome} ({facts}) {about}"


def read_decided(lines: Iterable[str]) -> tuple[set[Decided], int]:
    """Read the lines of decision files; return also how many could not be read (a torn last one).

    Decisions that were left out of the files are not known again: they were in shadow, and are made once more.
    """
    decided: set[Decided] = set()
    broken = 0
    for line in lines:
        try:
            record = json.loads(line)
            if LEFT_OUT in record:
                continue
            flip_ns = int(record["flip_unix_nano"])
            index = record["action_index"]
            decided.add(
                Decided(
                    str(record["rule_hash"]),
                    _subject(record),
                    flip_ns,
                    str(record["state"]),
                    None if index is None else int(index),
                    int(record["attempt"]),
                )
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            broken += 1
    return decided, broken


def _subject(record: Mapping[str, Any]) -> Subject:
    if "labels" in record:
        return tuple(sorted((str(name), str(value)) for name, value in record["labels"].items()))
    trace_id, span_id, tenant, choice = stream_of(record)
    return bytes.fromhex(trace_id), bytes.fromhex(span_id), tenant, choice


def stream_of(record: Mapping[str, Any]) -> tuple[str, str, str, int]:
    """Return the stream of a record: trace id and span id in hexadecimal, tenant, choice."""
    tenant = str(record.get("tenant", DEFAULT_TENANT))
    return str(record["trace_id"]), str(record["span_id"]), tenant, int(record["choice"])


def shown(value: Value | None) -> str:
    """Format the value of a fact for people."""
    if value is None:
        return "missing"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


_MOST: Final = 2**63
"""Integers beyond it do not fit in a database."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """The number of decisions of one rule on one tenant's streams that have no record of their own.

    `first_ns`, `last_ns`: the collector's now when the first and the last of them were made, unix ns.
    """

    tenant: str
    rule: str
    rule_hash: str
    count: int
    first_ns: int
    last_ns: int

    def record(self, time_unix_nano: int) -> dict[str, Any]:
        """Return the line's fields; `time_unix_nano`: the wall clock when it is written."""
        return {
            FIRST_KEY: time_unix_nano,
            LEFT_OUT: self.count,
            "rule": self.rule,
            "rule_hash": self.rule_hash,
            "tenant": self.tenant,
            "first_unix_nano": self.first_ns,
            "last_unix_nano": self.last_ns,
        }


def read_left_out(record: Mapping[str, Any]) -> LeftOut | None:
    """Read a count from a line of a decision file; None if the line is another one.

    Raises:
        ValueError, KeyError, TypeError: it is a count that cannot be read.
    """
    if LEFT_OUT not in record:
        return None
    names = [record[name] for name in ("tenant", "rule", "rule_hash")]
    numbers = [record[name] for name in (LEFT_OUT, "first_unix_nano", "last_unix_nano")]
    if not all(isinstance(name, str) for name in names):
        raise TypeError("a name is no text")
    if not all(type(number) is int and 0 <= number < _MOST for number in numbers):
        raise ValueError("a number is out of range")
    return LeftOut(*names, *numbers)
