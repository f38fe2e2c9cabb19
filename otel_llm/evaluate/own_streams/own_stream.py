"""One stream that this process owns: who it is, its arithmetic, and what the owner says of its connections."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from otel_llm.evaluate.streams.stream_in_flight import Grouped
from otel_llm.readers.assemble.resolved import Resolved
from otel_llm.slo.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from otel_llm.evaluate.streams.stream_in_flight import Group
    from otel_llm.evaluate.streams.stream_table import StreamTable
    from otel_llm.readers.records import Scalar, StreamKey
    from otel_llm.rules.engine.rule_state import RuleState
    from otel_llm.slo.classes import SloClass
    from otel_llm.slo.windows import Ledger


@dataclass(frozen=True, slots=True)
class Identity:
    """What is known of a stream at its commit; `attributes`: those of segment 0, by which classes are matched."""

    declared_class: str | None = None
    attributes: Mapping[str, Scalar] = field(default_factory=dict)
    model: str | None = None
    instance: str | None = None
    measured_at: str = "relay"
    exact_resume: bool = False
    input_tokens: int | None = None


@dataclass(slots=True, eq=False)
class OwnStream(Grouped):
    """A stream between its commit and its end, as `FirstHand` follows it; instants are unix ns of one clock.

    Its arithmetic is its state; its row of the table is a copy, made by `write` before the table is read.
    """

    table: StreamTable
    key: StreamKey
    identity: Identity
    """As at the commit, but for an instance or a length of prompt that was named later for the first time."""
    slo: SloClass
    stream: Stream
    group: Group
    """Class, model, instance and measured_at, as they are now; unknown names are empty."""
    exact_resume: bool
    slot: int = -1
    has_gap: bool = False
    """Bytes wait for the client's socket: facts about time are missing, and nothing is acted on."""
    catches_up: bool = False
    """They have gone just now, and what the backend sent meanwhile is being read."""
    ageless: bool = True
    """The backend's connection is open: there is nothing that could be missing."""
    watermark_ns: int = 0
    """When the backend's connection was lost, or the table was last written."""
    paused: bool = False
    ended_ns: int | None = None
    outcome: str | None = None
    look_ns: int | None = None
    """When its rules are next to be evaluated, if they may hold then; None where the next token says when."""
    looked_ns: int = 0
    """When they were last evaluated."""
    inactive_states: Sequence[RuleState] | None = None
    """The states of its rules while none of them can hold before `look_ns`, whatever tokens come."""
    written_tokens: int | None = None
    """How many tokens the judgement in its row of the table has; None where it is to be written in any case."""

    @property
    def suspended(self) -> bool:
        """Tell whether none of its rules is evaluated: it is paused, or bytes wait for its client or did just now."""
        return self.paused or self.has_gap or self.catches_up

    @property
    def offset_ns(self) -> int:
        """Return 0: the stream's clock is the rules' clock."""
        return 0

    @property
    def begun(self) -> bool:
        """Tell that the commit is known."""
        return True

    @property
    def tokens_so_far(self) -> Stream:
        """Return the arithmetic."""
        return self.stream

    @property
    def last_receipt_ns(self) -> int:
        """Return up to when the backend was heard, as the table has it."""
        return self.table.receipt_ns.item(self.slot)

    @property
    def known_until_ns(self) -> int:
        """Return up to when nothing is missing, as the table has it."""
        return self.watermark_ns

    @property
    def windows(self) -> Ledger | None:
        """Return None: a process that owns its streams keeps no windows."""
        return None

    @property
    def shift_ns(self) -> int:
        """Return 0."""
        return 0

    def name_instance(self, instance: str) -> None:
        """Name the replica that its row names: the first that served it."""
        self.identity = replace(self.identity, instance=instance)

    def judge_by(self, slo: SloClass) -> None:
        """Judge all tokens by another class."""
        old = self.stream
        self.slo, self.stream = slo, Stream(slo, old.commit_ns, old.input_tokens)
        self.stream.extend(old.times_ns, old.kinds)
        self.stream.skewed = old.skewed
        self.written_tokens = None

    def resolved(self, end_ns: int, outcome: str, token_basis: str | None) -> Resolved:
        """Return what an audit of its own segments would know of it."""
        who, stream = self.identity, self.stream
        return Resolved(
            trace_id=self.key[0],
            span_id=self.key[1],
            choice=self.key[2],
            declared_class=who.declared_class,
            attributes=dict(who.attributes),
            model=who.model,
            instance=who.instance,
            measured_at=who.measured_at,
            outcome=outcome,
            token_basis=token_basis,
            commit_ns=stream.commit_ns,
            end_ns=end_ns,
            coverage=None if outcome == "lost" else 1.0,
            complete=True,
            known_tokens=len(stream.times_ns),
            known_until_ns=end_ns,
            input_tokens=stream.input_tokens,
            exact_resume=who.exact_resume,
            offset_ns=0,
        )


def write(table: StreamTable, streams: Iterable[OwnStream], now_ns: int) -> None:
    """Bring the rows of streams up to now."""
    slots, known, moved, rows = [], [], [], []
    for stream in streams:
        if stream.ageless:
            stream.watermark_ns = now_ns
        slots.append(stream.slot)
        known.append(stream.watermark_ns)
        times = stream.stream.times_ns
        if stream.written_tokens != len(times):
            stream.written_tokens = len(times)
            moved.append(stream)
            rows.append(
                (stream.slot, len(times), stream.stream.last_ns, times[0] if times else stream.stream.commit_ns)
            )
    if slots:
        table.watermark_ns[slots] = table.receipt_ns[slots] = known
    if moved:
        at, tokens, last_ns, first_ns = np.array(rows).T
        table.tokens[at], table.last_ns[at], table.first_ns[at] = tokens, last_ns, first_ns
        table.running.store_many(at, ((stream.stream.running, stream.slo) for stream in moved))
