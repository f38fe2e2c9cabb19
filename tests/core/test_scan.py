"""The scan reads nothing outside its message, writes nothing outside its arrays, and finds the same in every mode."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from random import Random

import numpy as np
import numpy.typing as npt
import pytest
from support.core.core_spans import sent_segment
from support.core.guarded import GuardedMemory
from support.core.kernel_modes import MODES, shown_in
from support.core.scan_messages import END_NS, KIND_WORDS, mutation, random_message, sent_request
from support.examples import SEED, examples
from support.otlp import T0_NS, export, token

from otel_llm.core.scanning import span_columns as column
from otel_llm.core.scanning.scan import scan
from otel_llm.core.scanning.token_event import KIND_NAMES
from otel_llm.slo.classes import KINDS

Bytes = npt.NDArray[np.uint8]
SPANS, EVENTS, ATTRIBUTES, PIECES = 64, 4096, 256, 64


class Arrays:
    """Arrays for a scan, with room behind each that must stay as it is."""

    def __init__(self, spans: int = SPANS, events: int = EVENTS, attributes: int = ATTRIBUTES, pieces: int = PIECES):
        counts = ((events,), (events,), (events,))
        shapes = ((spans, column.SPAN_COLUMNS), *counts, (attributes, 2), (pieces, column.PIECE_COLUMNS))
        types = (np.int64, np.int64, np.int64, np.uint8, np.int64, np.int64)
        self._lengths = [shape[0] for shape in shapes]
        self._whole = [np.full((8 + shape[0], *shape[1:]), 77, kind) for shape, kind in zip(shapes, types, strict=True)]
        self.filled = np.zeros(column.COUNTS, np.int64)

    def scan(self, data: Bytes) -> int:
        spans, times, counts, kinds, attributes, pieces = (
            whole[:length] for whole, length in zip(self._whole, self._lengths, strict=True)
        )
        answer = scan(data, spans, times, counts, kinds, attributes, pieces, self.filled)
        for whole, length in zip(self._whole, self._lengths, strict=True):
            assert (whole[length:] == 77).all()
        return answer

    def digest(self) -> bytes:
        """Return a digest of all that was found."""
        events = (column.ALL_EVENTS, column.ALL_EVENTS, column.ALL_EVENTS)
        counts = (column.SPANS, *events, column.ALL_ATTRIBUTES, column.PIECES)
        found = hashlib.sha256(self.filled.tobytes())
        for whole, count in zip(self._whole, counts, strict=True):
            found.update(whole[: self.filled[count]].tobytes())
        return found.digest()


def mutations(number: int) -> Iterator[bytes]:
    random = Random(SEED)
    for _ in range(number // 20):
        whole, other = random_message(random), random_message(random)
        for _ in range(20):
            yield mutation(whole, other, random)


def digest_of_all(number: int) -> str:
    """Return a digest of what is found in so many messages."""
    found = hashlib.sha256()
    for raw in mutations(number):
        arrays = Arrays()
        answer = arrays.scan(np.frombuffer(raw, np.uint8))
        found.update(bytes((answer,)))
        if answer == column.READ:
            found.update(arrays.digest())
    return found.hexdigest()


def test_nothing_is_read_outside_of_a_message() -> None:
    read = 0
    with GuardedMemory(1 << 16) as memory:
        for raw in mutations(examples(4000)):
            if len(raw) < 1 << 16:
                read += Arrays().scan(memory.put(raw)) == column.READ
    assert read > examples(1000)


def test_every_beginning_of_a_message_is_read_within_it() -> None:
    events = [token(T0_NS, kind=KIND_WORDS[index % 3], count=index + 1) for index in range(6)]
    raw = export(sent_segment(1, 0, events, end_ns=END_NS), sent_request(parent=1)).SerializeToString()
    with GuardedMemory(len(raw)) as memory:
        for end in range(len(raw) + 1):
            Arrays().scan(memory.put(raw[:end]))


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_finds_the_same(mode: dict[str, str]) -> None:
    number = examples(300)
    assert shown_in(mode, "core.test_scan", f"digest_of_all({number})") == digest_of_all(number)


# Room.


def message(segments: int = 5) -> Bytes:
    spans = [
        sent_segment(1, 0, [token(T0_NS, count=3)] * 2, request=number, end_ns=END_NS, attributes={"a": 1})
        for number in range(1, segments + 1)
    ]
    return np.frombuffer(export(*spans).SerializeToString(), np.uint8)


def test_an_array_that_is_full_asks_for_more_room() -> None:
    data = message()
    needed = {"spans": 5, "events": 10, "attributes": 5, "pieces": 2}
    assert Arrays(**needed).scan(data) == column.READ
    for name, number in needed.items():
        for less in range(number):
            assert Arrays(**{**needed, name: less}).scan(data) == column.MORE_ROOM


def test_a_claim_takes_the_room_of_its_events() -> None:
    spans = [
        sent_segment(1, 0, [token(T0_NS, count=100_000)] * 3, request=number, end_ns=END_NS) for number in range(1, 41)
    ]
    for span in spans[20:]:
        span.links.add()  # left to protobuf
    arrays = Arrays(events=63)  # a span that is left to protobuf leaves its room
    assert arrays.scan(np.frombuffer(export(*spans).SerializeToString(), np.uint8)) == column.READ
    assert (arrays.filled[column.ALL_EVENTS], arrays.filled[column.MORE_TOKENS]) == (60, 20 * 300_000 - 60)


def test_kinds_are_coded_as_everywhere() -> None:
    assert KIND_NAMES == KINDS
