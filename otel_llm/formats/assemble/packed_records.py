"""Records as bytes, so that records decoded on one machine can be assembled on another.

A record is a frame: 4 bytes little-endian length of its head, the head (a JSON list), the times of its token events as
int64 little-endian, how many tokens each stands for, likewise, if they are not one each, and a byte of kind for each
if they are not all content. Concatenated frames are the records of a request.
"""

from __future__ import annotations

import json
from array import array
from struct import Struct
from typing import TYPE_CHECKING, Final

from otel_llm.formats.batch import Batch
from otel_llm.formats.records import RequestSpan, Segment

if TYPE_CHECKING:
    from otel_llm.formats.records import RequestKey

_LENGTH: Final = Struct("<I")
_TIME_BYTES: Final = 8


def pack(record: Segment | RequestSpan) -> bytes:
    """Return the frame of one record, without the key of its request."""
    if isinstance(record, Segment):
        times_ns = record.times_ns
        head: list[object] = [
            *("s", len(times_ns), record.counts is not None, record.kinds is not None),
            *(record.choice, record.seq, record.first_token, record.start_ns, record.end_ns),
            *(record.attributes, record.receipt_ns, record.instance_id),
        ]
    else:
        times_ns = record.events_ns
        head = [
            *("r", len(times_ns), record.counts is not None, record.kinds is not None),
            *(record.parent_id.hex(), record.name, record.kind, record.start_ns, record.end_ns, record.error),
            *(record.attributes, record.event_basis, record.dropped_events, record.receipt_ns, record.instance_id),
        ]
    text = json.dumps(head, separators=(",", ":")).encode("ascii")
    numbers = array("q", [*times_ns, *(record.counts or ())])
    return b"".join((_LENGTH.pack(len(text)), text, numbers.tobytes(), record.kinds or b""))


def unpack(key: RequestKey, frames: bytes) -> Batch:
    """Return the records of one request, in the order of their frames.

    Raises:
        ValueError: these bytes are no frames.
    """
    trace_id, span_id, tenant = key
    batch = Batch()
    at = 0
    while at < len(frames):
        try:
            (size,) = _LENGTH.unpack_from(frames, at)
            at += _LENGTH.size
            what, events, has_counts, has_kinds, *values = json.loads(frames[at : at + size])
        except Exception as error:
            raise ValueError(f"no record of ours at byte {at} of {len(frames)}") from error
        at += size
        numbers_end = at + _TIME_BYTES * events * (1 + has_counts)
        end = numbers_end + has_kinds * events
        if end > len(frames):
            raise ValueError(f"a record that is cut: it ends at byte {end} of {len(frames)}")
        numbers = array("q", frames[at:numbers_end]).tolist()
        times_ns, counts = numbers[:events], numbers[events:] or None
        kinds = frames[numbers_end:end] if has_kinds else None
        at = end
        if what == "s":
            choice, seq, first_token, start_ns, end_ns, attributes, receipt_ns, instance_id = values
            batch.segments.append(
                Segment(
                    *(trace_id, span_id, choice, seq, first_token, start_ns, end_ns),
                    *(times_ns, kinds, attributes, receipt_ns, instance_id),
                    counts=counts,
                )
            )
        else:
            parent, name, kind, start_ns, end_ns, error_, attributes, basis, dropped, receipt_ns, instance_id = values
            batch.requests.append(
                RequestSpan(
                    *(trace_id, span_id, bytes.fromhex(parent), name, kind, start_ns, end_ns, error_),
                    *(attributes, times_ns, kinds, basis, dropped, receipt_ns, instance_id),
                    counts=counts,
                )
            )
    batch.owned_by(tenant)
    return batch
