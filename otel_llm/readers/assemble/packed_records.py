"""Records as bytes, so that records decoded on one machine can be assembled on another.

A record is a frame: 4 bytes little-endian length of its head, the head (a JSON list), its token times as int64
little-endian, and a byte of kind for each where they are not all content. Concatenated frames are the records of a
request.
"""

from __future__ import annotations

import json
from array import array
from struct import Struct
from typing import TYPE_CHECKING, Final

from otel_llm.readers.batch import Batch
from otel_llm.readers.records import RequestSpan, Segment

if TYPE_CHECKING:
    from otel_llm.readers.records import RequestKey

_LENGTH: Final = Struct("<I")
_TIME_BYTES: Final = 8


def pack(record: Segment | RequestSpan) -> bytes:
    """Return the frame of one record, without its key: trace id and request span id."""
    if isinstance(record, Segment):
        times_ns = record.times_ns
        head: list[object] = [
            *("s", len(times_ns), record.kinds is not None),
            *(record.choice, record.seq, record.first_token, record.start_ns, record.end_ns),
            *(record.attributes, record.receipt_ns, record.instance_id),
        ]
    else:
        times_ns = record.events_ns
        head = [
            *("r", len(times_ns), record.kinds is not None),
            *(record.parent_id.hex(), record.name, record.kind, record.start_ns, record.end_ns, record.error),
            *(record.attributes, record.event_basis, record.dropped_events, record.receipt_ns, record.instance_id),
        ]
    text = json.dumps(head, separators=(",", ":")).encode("ascii")
    return b"".join((_LENGTH.pack(len(text)), text, array("q", times_ns).tobytes(), record.kinds or b""))


def unpack(key: RequestKey, frames: bytes) -> Batch:
    """Return the records of one request, in the order of their frames.

    Raises:
        ValueError: these bytes are no frames.
    """
    batch = Batch()
    at = 0
    while at < len(frames):
        try:
            (size,) = _LENGTH.unpack_from(frames, at)
            at += _LENGTH.size
            what, tokens, has_kinds, *values = json.loads(frames[at : at + size])
        except Exception as error:
            raise ValueError(f"no record of ours at byte {at} of {len(frames)}") from error
        at += size
        end = at + (_TIME_BYTES + has_kinds) * tokens
        if end > len(frames):
            raise ValueError(f"a record that is cut: it ends at byte {end} of {len(frames)}")
        times = array("q", frames[at : at + _TIME_BYTES * tokens])
        kinds = frames[end - tokens : end] if has_kinds else None
        at = end
        if what == "s":
            choice, seq, first_token, start_ns, end_ns, attributes, receipt_ns, instance_id = values
            batch.segments.append(
                Segment(
                    *(*key, choice, seq, first_token, start_ns, end_ns),
                    *(times.tolist(), kinds, attributes, receipt_ns, instance_id),
                )
            )
        else:
            parent, name, kind, start_ns, end_ns, error_, attributes, basis, dropped, receipt_ns, instance_id = values
            batch.requests.append(
                RequestSpan(
                    *(*key, bytes.fromhex(parent), name, kind, start_ns, end_ns, error_),
                    *(attributes, times.tolist(), kinds, basis, dropped, receipt_ns, instance_id),
                )
            )
    return batch
