"""The records that every parser yields: segments and request spans, as plain values with integer times.

Parsers turn any received or recorded format into these; no later code knows OTLP. Times are unix
nanoseconds in [1, MAX_TIME_NS], up to the year 2116, so that lengths can be added to them in 64 bits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from otel_llm.slo.token_events import TokenEvents, tokens_of

if TYPE_CHECKING:
    from collections.abc import Sequence

Scalar: TypeAlias = str | int | float | bool
Attributes: TypeAlias = dict[str, Scalar]
RequestKey: TypeAlias = tuple[bytes, bytes, str]
"""Trace id, request span id and tenant."""
StreamKey: TypeAlias = tuple[bytes, bytes, str, int]
"""Trace id, request span id, tenant and choice."""

DEFAULT_TENANT: Final = "default"
"""The tenant of a sender whose token names none, and of recordings that state none."""


def tenant_words(tenant: object) -> str:
    """Return a tenant as the end of a line of text; nothing for the default one."""
    return "" if tenant == DEFAULT_TENANT else f" of tenant {tenant}"


class InputError(ValueError):
    """An input cannot be read at all; the message names it and says what to do."""


class DecodeError(InputError):
    """Bytes are no trace export request; nothing of them was used."""


@dataclass(slots=True)
class Segment:
    """One numbered piece of one stream: these tokens arrived between `start_ns` and `end_ns`, and no others.

    `times_ns` is as received, one for each event: not necessarily sorted, and possibly outside the segment. `kinds` has
    one code of `otel_llm.slo.classes.KINDS` for each, None when all are content; `counts` how many tokens each stood
    for, None for one each: a claim is not expanded before it is judged. `attributes` are the span's scalar attributes
    except those that became fields; known ones have the right type.
    """

    trace_id: bytes
    span_id: bytes
    """The request span's: the segment span's parent."""
    choice: int
    seq: int
    first_token: int
    start_ns: int
    end_ns: int
    times_ns: Sequence[int]
    kinds: bytes | None
    attributes: Attributes
    receipt_ns: int | None = None
    instance_id: str | None = None
    """`service.instance.id` of the resource: the sending process."""
    last_byte_ns: int = 0
    """The newest byte of the reply that it states, framing included, not after its end; 0 if it states none."""
    counts: Sequence[int] | None = None
    tenant: str = DEFAULT_TENANT
    """The tenant of its sender."""

    @property
    def tokens(self) -> int:
        """Return the number of its tokens."""
        return tokens_of(self.times_ns, self.counts)

    @property
    def events(self) -> TokenEvents:
        """Return its token events."""
        return TokenEvents(self.times_ns, self.kinds, self.counts)

    @property
    def request_key(self) -> RequestKey:
        """Return the identity of its request."""
        return (self.trace_id, self.span_id, self.tenant)

    @property
    def key(self) -> tuple[bytes, bytes, str, int, int]:
        """Return the identity of the segment; of several with one key the first received counts."""
        return (self.trace_id, self.span_id, self.tenant, self.choice, self.seq)


@dataclass(slots=True)
class RequestSpan:
    """One inference span, ours or another instrumentation's.

    `events_ns` are the times of token (or chunk) events on the span itself, as received, `kinds` and `counts` as in a
    segment; `event_basis`: `chunk` for others' events a chunk, None if unknown.
    """

    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    """Empty for a root span."""
    name: str
    kind: int
    """`SpanKind` of OTLP: 1 internal, 2 server, 3 client."""
    start_ns: int
    end_ns: int
    error: bool
    attributes: Attributes
    events_ns: Sequence[int] = field(default_factory=list)
    kinds: bytes | None = None
    event_basis: str | None = None
    dropped_events: int = 0
    """Events that the sender's SDK dropped; they count as not received."""
    receipt_ns: int | None = None
    instance_id: str | None = None
    counts: Sequence[int] | None = None
    tenant: str = DEFAULT_TENANT
    """The tenant of its sender."""

    @property
    def tokens(self) -> int:
        """Return the number of tokens of its events."""
        return tokens_of(self.events_ns, self.counts)

    @property
    def events(self) -> TokenEvents:
        """Return its token events."""
        return TokenEvents(self.events_ns, self.kinds, self.counts)

    @property
    def key(self) -> RequestKey:
        """Return the identity of the span; of several with one key the first received counts."""
        return (self.trace_id, self.span_id, self.tenant)
