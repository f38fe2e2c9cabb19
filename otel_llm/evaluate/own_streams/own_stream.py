"""One stream that this process owns: its identity, its arithmetic, the state of its connections."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otel_llm import semconv
from otel_llm.evaluate.streams.stream_in_flight import Grouped
from otel_llm.formats.assemble.resolved import Resolved
from otel_llm.formats.spans.attributes import text_of
from otel_llm.slo.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from otel_llm.evaluate.streams.stream_in_flight import Group
    from otel_llm.evaluate.streams.stream_table import StreamTable
    from otel_llm.formats.records import Scalar, StreamKey
    from otel_llm.rules.engine.rule_state import RuleState
    from otel_llm.slo.classes import SloClass
    from otel_llm.slo.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a stream at its commit; `attributes`: of segment 0, by which classes are matched."""

    declared_class: str | None = None
    attributes: Mapping[str, Scalar] = field(default_factory=dict)
    model: str | None = None
    instance: str | None = None
    measured_at: str = "relay"
    exact_resume: bool = False
    input_tokens: int | None = None

    @classmethod
    def stated(cls, attributes: Mapping[str, Scalar | tuple[Scalar, ...]], **more: Any) -> Identity:
        """Return the identity that these attributes state, with what is known besides."""
        scalars = {name: value for name, value in attributes.items() if not isinstance(value, tuple)}
        slo_class, model = (text_of(scalars, name) for name in (semconv.SLO_CLASS, semconv.GEN_AI_REQUEST_MODEL))
        return cls(declared_class=slo_class, attributes=scalars, model=model, **more)


@dataclass(frozen=True, slots=True)
class Statement:
    """What is known of a stream at its end, as its segments and its request span will state it.

    `token_basis`: how its tokens were counted; `output_tokens` and `reasoning_tokens`: the reply's own total, and the
    part of it that is reasoning, if the request has one choice. `finish_reason`: why the model stopped. `queue_s`: the
    time in the relay's queue; `relay_lag_s`: how long bytes of it waited for the relay's event loop.
    """

    token_basis: str | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    finish_reason: str | None = None
    queue_s: float | None = None
    relay_lag_s: float | None = None


UNSTATED: Final = Statement()


@dataclass(slots=True, eq=False)
class OwnStream(Grouped):
    """A stream of `FirstHand` between its commit and its end; instants are unix ns of one clock.

    Its arithmetic works on its row of the table; `write` updates the other columns before the table is read.
    """

    table: StreamTable
    key: StreamKey
    identity: Identity
    """As at the commit; an instance or a prompt length may be added later."""
    slo: SloClass
    group: Group
    """The present group."""
    exact_resume: bool
    stream: Stream = field(init=False)
    """The arithmetic, once it has a slot (`begin`)."""
    token_basis: str | None = None
    """How the tokens are counted; None before the first."""
    token_ratio_learned: bool | None = None
    counted_since_ns: int | None = None
    """The first token that is counted otherwise than the one before it."""
    last_byte_ns: int = 0
    """The newest byte of the reply, framing included; 0 before the first."""
    slot: int = -1
    has_gap: bool = False
    """Bytes wait for the client's socket: facts about time are missing, and rules are suspended."""
    catches_up: bool = False
    """The bytes have just been sent, and tokens that the backend sent in between are being read."""
    ageless: bool = True
    """The connection to the backend is open: no token can be missing."""
    watermark_ns: int = 0
    """When the connection to the backend was lost, or the table was last written."""
    paused: bool = False
    ended_ns: int | None = None
    outcome: str | None = None
    evaluation_ns: int | None = None
    """The next evaluation of its rules; None: the next token schedules it."""
    evaluated_ns: int = 0
    """The last evaluation of its rules."""
    inactive_states: Sequence[RuleState] | None = None
    """The states of its rules while none of them can hold before `evaluation_ns`, whatever tokens follow."""
    written_tokens: int | None = None
    """The number of tokens in its row of the table; None: the row must be written."""

    @property
    def suspended(self) -> bool:
        """Return whether its rules are suspended: it is paused, or bytes wait for its client, or did until just now."""
        return self.paused or self.has_gap or self.catches_up

    @property
    def offset_ns(self) -> int:
        """Return 0: the stream's clock is the rules' clock."""
        return 0

    @property
    def begun(self) -> bool:
        """Return True: the commit is known."""
        return True

    @property
    def last_receipt_ns(self) -> int:
        """Return the instant up to which the backend was read, from the table."""
        return self.table.receipt_ns.item(self.slot)

    @property
    def known_until_ns(self) -> int:
        """Return the instant up to which all tokens are known."""
        return self.watermark_ns

    @property
    def windows(self) -> Ledger | None:
        """Return None: a process that owns its streams has no windows."""
        return None

    @property
    def shift_ns(self) -> int:
        """Return 0."""
        return 0

    def begin(self, commit_ns: int) -> None:
        """Take a slot of the table, and start the arithmetic."""
        self.slot = self.table.take(self, None)
        self.table.name(self.slot, self.group, self.slo)
        self.stream = Stream(self.slo, commit_ns, self.identity.input_tokens, self.table, self.slot)

    def name_instance(self, instance: str) -> None:
        """Set the replica of its row: the first that served it."""
        self.identity = replace(self.identity, instance=instance)

    def count_by(self, counting: tuple[str, bool], since_ns: int) -> bool:
        """Set the basis of its tokens, and whether their estimate was learned; return whether that is a change."""
        if counting == (self.token_basis, self.token_ratio_learned):
            return False
        if self.token_basis is not None:
            self.counted_since_ns = since_ns
        self.token_basis, self.token_ratio_learned = counting
        return True

    def judge_by(self, slo: SloClass) -> None:
        """Judge all tokens again, by another class."""
        old = self.stream
        self.slo, self.stream = slo, Stream(slo, old.commit_ns, old.input_tokens, self.table, self.slot)
        self.stream.extend(*old.events)
        self.stream.skewed = old.skewed
        self.written_tokens = None

    def resolved(self, end_ns: int, outcome: str, stated: Statement) -> Resolved:
        """Return the data that an audit of its segments would have."""
        who, stream = self.identity, self.stream
        return Resolved(
            trace_id=self.key[0],
            span_id=self.key[1],
            tenant=self.key[2],
            choice=self.key[3],
            declared_class=who.declared_class,
            attributes=dict(who.attributes),
            model=who.model,
            instance=who.instance,
            measured_at=who.measured_at,
            outcome=outcome,
            finish_reason=stated.finish_reason,
            token_basis=stated.token_basis,
            commit_ns=stream.commit_ns,
            end_ns=end_ns,
            coverage=None if outcome == "lost" else 1.0,
            complete=True,
            known_tokens=stream.tokens,
            known_until_ns=end_ns,
            input_tokens=stream.input_tokens,
            output_tokens=stated.output_tokens,
            reasoning_tokens=stated.reasoning_tokens,
            queue_s=stated.queue_s,
            exact_resume=who.exact_resume,
            offset_ns=0,
            relay_lag_s=stated.relay_lag_s,
        )


def write(table: StreamTable, streams: Iterable[OwnStream], now_ns: int) -> None:
    """Write the rows of streams, as of `now_ns`, to the table."""
    slots, known, rows = [], [], []
    for stream in streams:
        if stream.ageless:
            stream.watermark_ns = now_ns
        slots.append(stream.slot)
        known.append(stream.watermark_ns)
        times = stream.stream.times_ns
        if stream.written_tokens != stream.stream.tokens:
            stream.written_tokens = stream.stream.tokens
            first_ns = times[0] if times else stream.stream.commit_ns
            rows.append((stream.slot, stream.written_tokens, stream.stream.last_ns, first_ns))
    if slots:
        table.watermark_ns[slots] = table.receipt_ns[slots] = known
    if rows:
        at, tokens, last_ns, first_ns = np.array(rows).T
        table.tokens[at], table.last_ns[at], table.first_ns[at] = tokens, last_ns, first_ns
