"""The parts of a stream that were received, in any order."""

from __future__ import annotations

from itertools import permutations

import pytest

from otel_llm import semconv
from otel_llm.formats.assemble.received_stream import ReceivedStream
from otel_llm.formats.records import Attributes, Segment


def segment(seq: int, outcome: str | None = None) -> Segment:
    reported: Attributes = {} if outcome is None else {semconv.OUTCOME: outcome}
    return Segment(bytes(16), bytes(8), 0, seq, 0, seq, seq + 1, [], None, reported, None)


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_of_several_segments_that_end_a_stream_the_last_one_counts(order: tuple[int, ...]) -> None:
    sent = [segment(0), segment(1, "cancelled"), segment(2), segment(3, "completed")]
    received = ReceivedStream()
    for seq in order:
        assert received.add(sent[seq]) is None
    assert received.ending == 3
