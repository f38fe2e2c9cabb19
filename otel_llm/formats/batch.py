"""The contents of one export request: its records, as objects or as columns, and counts of refused and odd spans."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from otel_llm.formats.records import DEFAULT_TENANT, Segment
from otel_llm.slo.classes import CONTENT

if TYPE_CHECKING:
    import numpy.typing as npt

    from otel_llm.formats.records import RequestSpan

    Ints = npt.NDArray[np.int64]
    Bytes = npt.NDArray[np.uint8]
    from otel_llm.formats.records import RequestKey

    Bools = npt.NDArray[np.bool_]


_TRACE_BYTES: Final = 16
_IDS_BYTES: Final = 24
_IDS: Final = np.dtype(f"V{_IDS_BYTES}")
"""Trace id and request span id, concatenated."""


@dataclass(slots=True)
class SegmentColumns:
    """Segments as columns, in the order of the message.

    `ids`: (S, 3), the halves of the trace id and the id of the request span, each eight bytes as an integer; `seq`,
    `first_token`, `start_ns`, `end_ns`, `kind`, `last_byte_ns`, `tokens`: (S,); `times_ns`, `counts`: (N,) all token
    events and how many tokens each stands for, those of segment i at `offsets[i]:offsets[i + 1]`, as received; `kind`
    is the code of all tokens of a segment. The choice is 0, and there are no attributes.
    """

    ids: Ints
    seq: Ints
    first_token: Ints
    start_ns: Ints
    end_ns: Ints
    kind: Bytes
    offsets: Ints
    times_ns: Ints
    counts: Ints
    tokens: Ints
    last_byte_ns: Ints

    def __len__(self) -> int:
        return len(self.seq)

    @property
    def keys(self) -> list[bytes]:
        """Return the ids of each, 24 bytes: trace id and request span id."""
        return ids_of(self.ids)

    def segment(self, index: int, receipt_ns: int | None, tenant: str) -> Segment:
        """Return one of them as a record."""
        (ids,) = ids_of(self.ids[index : index + 1])
        own = slice(self.offsets[index], self.offsets[index + 1])
        kind, times_ns = self.kind.item(index), self.times_ns[own].tolist()
        return Segment(
            ids[:_TRACE_BYTES],
            ids[_TRACE_BYTES:],
            0,
            self.seq.item(index),
            self.first_token.item(index),
            self.start_ns.item(index),
            self.end_ns.item(index),
            times_ns,
            None if kind == CONTENT or not times_ns else bytes((kind,)) * len(times_ns),
            {},
            receipt_ns,
            last_byte_ns=self.last_byte_ns.item(index),
            counts=None if self.tokens.item(index) == len(times_ns) else self.counts[own].tolist(),
            tenant=tenant,
        )

    def only(self, chosen: Bools) -> SegmentColumns:
        """Return the chosen ones, (S,) bool."""
        lengths = np.diff(self.offsets)
        events = np.repeat(chosen, lengths)
        return SegmentColumns(
            ids=self.ids[chosen],
            seq=self.seq[chosen],
            first_token=self.first_token[chosen],
            start_ns=self.start_ns[chosen],
            end_ns=self.end_ns[chosen],
            kind=self.kind[chosen],
            offsets=np.concatenate(([0], np.cumsum(lengths[chosen]))),
            times_ns=self.times_ns[events],
            counts=self.counts[events],
            tokens=self.tokens[chosen],
            last_byte_ns=self.last_byte_ns[chosen],
        )


def ids_of(ids: Ints) -> list[bytes]:
    """Return rows of three integers as the 24 bytes that they were read from."""
    found: list[bytes] = ids.view(_IDS).ravel().tolist()
    return found


def key_suffix(tenant: str) -> bytes:
    """Return what follows the ids in a request's key as bytes: nothing for the default tenant, which most have."""
    return b"" if tenant == DEFAULT_TENANT else tenant.encode()


def key_bytes(key: RequestKey) -> bytes:
    """Return a request's key as bytes: trace id, span id, tenant."""
    trace_id, span_id, tenant = key
    return trace_id + span_id + key_suffix(tenant)


def request_of(key: bytes) -> RequestKey:
    """Return the request's key that `key_bytes` wrote."""
    return key[:_TRACE_BYTES], key[_TRACE_BYTES:_IDS_BYTES], key[_IDS_BYTES:].decode() or DEFAULT_TENANT


@dataclass(slots=True)
class Batch:
    """The contents of one export request, in their order.

    `refused` counts unusable spans of our kind, by reason; `anomalies` counts omissions and oddities of accepted
    spans; `ignored` counts spans of other kinds.
    """

    segments: list[Segment] = field(default_factory=list)
    plain: SegmentColumns | None = None
    """Further segments, as columns: those of the plain form, for which the parser did not build objects."""
    requests: list[RequestSpan] = field(default_factory=list)
    ignored: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    anomalies: Counter[str] = field(default_factory=Counter)
    tenant: str = DEFAULT_TENANT
    """The tenant of all records; `owned_by` sets it."""

    @property
    def spans(self) -> int:
        """Return the number of the request's spans."""
        plain = 0 if self.plain is None else len(self.plain)
        return plain + len(self.segments) + len(self.requests) + self.ignored + self.refused.total()

    @property
    def tokens(self) -> int:
        """Return the number of its segments' tokens."""
        plain = 0 if self.plain is None else int(self.plain.tokens.sum())
        return plain + sum(segment.tokens for segment in self.segments)

    @property
    def begins(self) -> bool:
        """Tell whether it holds the commit of a request."""
        return any(segment.seq == 0 for segment in self.segments)

    def bound(self, *, segments: int, choices: int) -> None:
        """Refuse segments numbered from `segments` on, and those of choices from `choices` on."""
        kept = [segment for segment in self.segments if segment.seq < segments and segment.choice < choices]
        if len(kept) < len(self.segments):
            for segment in self.segments:
                if segment.seq >= segments:
                    self.refused["too_many_segments"] += 1
                elif segment.choice >= choices:
                    self.refused["too_many_choices"] += 1
            self.segments = kept
        if self.plain is not None:
            within = self.plain.seq < segments
            if not within.all():
                self.refused["too_many_segments"] += int((~within).sum())
                self.plain = self.plain.only(within)

    def owned_by(self, tenant: str) -> None:
        """Give all records to a tenant."""
        if tenant != self.tenant:
            self.tenant = tenant
            for segment in self.segments:
                segment.tenant = tenant
            for span in self.requests:
                span.tenant = tenant

    def plain_keys(self) -> list[bytes]:
        """Return the key of the request of each plain segment, as `key_bytes` does."""
        if self.plain is None:
            return []
        suffix = key_suffix(self.tenant)
        return [ids + suffix for ids in self.plain.keys] if suffix else self.plain.keys

    def received(self, receipt_ns: int) -> None:
        """Stamp all records with the time of receipt (unix ns)."""
        for segment in self.segments:
            segment.receipt_ns = receipt_ns
        for span in self.requests:
            span.receipt_ns = receipt_ns
