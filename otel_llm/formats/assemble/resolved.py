"""What is known of one stream once its parts are put together, with its token times: what every row is made of."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from otel_llm.formats.records import DEFAULT_TENANT
from otel_llm.slo.stated_total import Stated
from otel_llm.slo.token_events import TokenEvents

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_llm.formats.foreign.foreign_spans import Foreign
    from otel_llm.formats.records import Attributes, StreamKey


@dataclass(slots=True, kw_only=True)
class Ending:
    """How one stream ended, and which of its tokens are known. Times are unix ns; None: not known."""

    outcome: str
    commit_ns: int | None
    end_ns: int | None
    """The end of the stream; for a lost one the end of the last segment seen."""
    finish_reason: str | None = None
    """Why the model stopped, see `finish_reasons`."""
    token_basis: str | None = None
    coverage: float | None = None
    complete: bool = False
    """Nothing is known to be missing and the commit is known: the stream can be judged."""
    known_tokens: int = 0
    """Tokens in the unbroken run from the first; the times of the first token are trusted when it is not 0."""
    known_until_ns: int | None = None
    """The instant up to which that run is known to be complete."""
    output_tokens: int | None = None
    """The tokens that the reply stated of itself, reasoning included; None if it has other choices, too."""
    reasoning_tokens: int | None = None
    """The part of them that is reasoning."""

    @property
    def stated(self) -> Stated:
        """Return what decides by which tokens the stream is judged."""
        return Stated(self.outcome, self.coverage, self.token_basis, self.output_tokens, self.reasoning_tokens)

    def fields(self) -> dict[str, Any]:
        """Return its fields by name."""
        return {name: getattr(self, name) for name in Ending.__slots__}


@dataclass(slots=True, kw_only=True)
class Resolved(Ending):
    """The facts of one stream, before any class judges it."""

    trace_id: bytes
    span_id: bytes
    choice: int | None
    attributes: Attributes
    """The attributes that a class's `match` is compared with: segment 0's and the request span's, segments first."""
    measured_at: str
    declared_class: str | None = None
    model: str | None = None
    instance: str | None = None
    input_tokens: int | None = None
    exact_resume: bool = False
    offset_ns: int | None = None
    """End - receipt of the first received segment: the sender's clock is ahead by at least this."""
    queue_s: float | None = None
    prefill_s: float | None = None
    relay_lag_s: float | None = None
    foreign: Foreign | None = None
    """The statements of another instrumentation's span; without token times only these columns are filled."""
    tenant: str = DEFAULT_TENANT
    """The tenant of its sender."""

    @property
    def key(self) -> StreamKey:
        """Return the stream's key."""
        return (self.trace_id, self.span_id, self.tenant, self.choice or 0)

    def shift_ns(self, lateness_ns: int) -> int:
        """Return what to subtract from the stream's times to place them in windows."""
        return shift_ns(self.offset_ns, lateness_ns)


@dataclass(slots=True)
class Assembled:
    """One stream at the end of the input: its facts, and its token events as in `TokenEvents`.

    Times are sorted if the stream is complete; if tokens are missing they stay in order of index, so that the
    first `resolved.known_tokens` are those before the hole.
    """

    resolved: Resolved
    times_ns: Sequence[int]
    kinds: bytes | None
    counts: Sequence[int] | None = None

    @classmethod
    def of(cls, resolved: Resolved, events: TokenEvents) -> Assembled:
        """Return a stream with these token events."""
        return cls(resolved, *events)

    @property
    def events(self) -> TokenEvents:
        """Return the token events."""
        return TokenEvents(self.times_ns, self.kinds, self.counts)

    @property
    def tokens(self) -> int:
        """Return the number of tokens."""
        return self.events.tokens


def derived_ids(file_format: str, own_id: object, send_ns: int | None) -> tuple[bytes, bytes]:
    """Return a trace id and a span id for a request of a format without them, the same whenever it is read.

    `own_id`: identifies the request within the format; `send_ns`: when it was sent, ns.
    """
    trace_id = blake2b(f"{file_format}\0{own_id}\0{send_ns}".encode("utf-8", "replace"), digest_size=16).digest()
    return trace_id, trace_id[:8]


def shift_ns(offset_ns: int | None, lateness_ns: int) -> int:
    """Return what to subtract from a stream's times: `offset_ns` if the sender's clock is off by more than lateness.

    Otherwise such a sender would report into windows long closed, or far in the future.
    """
    return 0 if offset_ns is None or abs(offset_ns) <= lateness_ns else offset_ns


def row_order(resolved: Resolved) -> tuple[bool, int, bytes, bytes, bool, int, str]:
    """Return the sort key of a row: start, trace id, span id, choice, tenant; unknown starts, null choices last."""
    return (
        resolved.commit_ns is None,
        resolved.commit_ns or 0,
        resolved.trace_id,
        resolved.span_id,
        resolved.choice is None,
        resolved.choice or 0,
        resolved.tenant,
    )
