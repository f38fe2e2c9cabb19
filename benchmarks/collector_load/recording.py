"""Encoded exports that can be sent at any later time: every time in them is moved, and not another bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from collector_load.fleet import HEAD

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from collector_load.fleet import Export
    from numpy.typing import NDArray

T0_NS: Final = 1_790_000_000_000_000_000
"""When a fleet begins that is recorded (unix ns)."""

# Tags: the number of a field times 8 plus its wire type (opentelemetry-proto 1.x, trace.proto).
_INNER: Final = 0x12
"""Field 2 with a length: `ResourceSpans.scope_spans`, `ScopeSpans.spans`."""
_RESOURCE_SPANS: Final = 0x0A
_SPAN_TIMES: Final = (0x39, 0x41)
_EVENTS: Final = 0x5A
_EVENT_TIME: Final = 0x09


@dataclass(frozen=True, slots=True)
class Recording:
    """Exports in a file as `read_exports` reads it, and where in it times stand.

    `content`: (bytes,) uint8, the file. `times`: (n,) int64, where the 8 bytes (little-endian) of each time begin: when
    an export is due, when a span starts and ends, when an event was. `start_ns`: when the fleet began (unix ns).
    """

    content: NDArray[np.uint8]
    times: NDArray[np.int64]
    exports: int
    start_ns: int

    @classmethod
    def of(cls, exports: Iterable[Export], start_ns: int = T0_NS) -> Recording:
        """Record exports that begin at `start_ns`."""
        content, times, count = bytearray(), [], 0
        for due_ns, application, raw in exports:
            times.append(len(content))
            content += HEAD.pack(due_ns, application, len(raw))
            base = len(content)
            times += [base + at for at in time_positions(raw)]
            content += raw
            count += 1
        return cls(np.frombuffer(bytes(content), np.uint8), np.array(times, np.int64), count, start_ns)

    @property
    def span_and_event_times(self) -> int:
        """Return how many times its spans and events have: the same for each encoding of the same exports."""
        return len(self.times) - self.exports

    def messages(self) -> list[bytes]:
        """Return the bytes of each export as they were recorded."""
        content, at, messages = self.content.tobytes(), 0, []
        while at < len(content):
            _, _, length = HEAD.unpack_from(content, at)
            at += HEAD.size + length
            messages.append(content[at - length : at])
        return messages

    def write(self, path: Path, start_ns: int) -> None:
        """Write the file with all times moved so that it begins at `start_ns` (unix ns)."""
        moved = self.content.copy()
        values = np.zeros(len(self.times), np.uint64)
        for k in range(8):
            values |= moved[self.times + k].astype(np.uint64) << np.uint64(8 * k)
        values += np.uint64((start_ns - self.start_ns) % 2**64)
        for k in range(8):
            moved[self.times + k] = (values >> np.uint64(8 * k)).astype(np.uint8)
        path.write_bytes(moved.tobytes())


def time_positions(raw: bytes) -> list[int]:
    """Return where in an `ExportTraceServiceRequest` the times of spans and of their events begin."""
    places: list[int] = []
    for tag, begin, end in _fields(raw, 0, len(raw)):
        if tag == _RESOURCE_SPANS:
            for scope_tag, scope_begin, scope_end in _fields(raw, begin, end):
                if scope_tag == _INNER:
                    for span_tag, span_begin, span_end in _fields(raw, scope_begin, scope_end):
                        if span_tag == _INNER:
                            _add_span(raw, span_begin, span_end, places)
    return places


def _add_span(raw: bytes, begin: int, end: int, places: list[int]) -> None:
    for tag, at, stop in _fields(raw, begin, end):
        if tag == _EVENTS:
            if raw[at] == _EVENT_TIME:  # the first field, as encoders write it
                places.append(at + 1)
            else:
                places += [place for inner, place, _ in _fields(raw, at, stop) if inner == _EVENT_TIME]
        elif tag in _SPAN_TIMES:
            places.append(at)


def _fields(raw: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield (tag, begin, end of the value) of each field of the message that stands in raw[at:end]."""
    while at < end:
        tag, at = _varint(raw, at)
        kind = tag & 7
        if kind == 2:
            length, at = _varint(raw, at)
            stop = at + length
        elif kind == 0:
            _, stop = _varint(raw, at)
        elif kind in {1, 5}:
            stop = at + (8 if kind == 1 else 4)
        else:
            raise ValueError(f"wire type {kind} at byte {at}")
        yield tag, at, stop
        at = stop


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
