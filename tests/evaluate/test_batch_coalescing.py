"""Exports are taken in groups of which no two speak of one stream, as told key by key."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_llm.evaluate import batch_coalescing as module
from otel_llm.evaluate.batch_coalescing import MAX_COALESCED, coalesce
from otel_llm.readers.plain_segments import PlainSegments
from otel_llm.readers.records import Batch

SHORTEST_NS = 10


def segments_of(streams: list[int]) -> PlainSegments:
    """Return a segment without tokens of each of these streams."""
    zeros = np.zeros(len(streams), dtype=np.int64)
    ids = np.array([(1, 1 + stream % 2, 1 + stream) for stream in streams], dtype=np.int64)
    kinds, offsets = np.zeros(len(streams), dtype=np.uint8), np.zeros(len(streams) + 1, dtype=np.int64)
    return PlainSegments(ids, zeros, zeros, zeros, zeros, kinds, offsets, np.zeros(0, dtype=np.int64))


def cut(received: list[tuple[Batch, int]]) -> list[list[tuple[Batch, int]]]:
    """Return the groups, by what a group is."""
    found: list[list[tuple[Batch, int]]] = []
    for batch, now_ns in received:
        streams = set() if batch.plain is None else set(batch.plain.keys)
        group = found[-1] if found else []
        seen = {key for one, _ in group if one.plain is not None for key in one.plain.keys}
        if group and len(group) < MAX_COALESCED and now_ns - group[0][1] < SHORTEST_NS and not seen & streams:
            group.append((batch, now_ns))
        else:
            found.append([(batch, now_ns)])
    return found


@pytest.mark.parametrize("alike", [False, True])
@given(
    exports=st.lists(st.tuples(st.integers(0, 4), st.none() | st.lists(st.integers(0, 30), min_size=1, max_size=4))),
    repeated=st.sampled_from([1, 1, 1, MAX_COALESCED]),
)
def test_groups(alike: bool, exports: list[tuple[int, list[int] | None]], repeated: int) -> None:
    """Also where the numbers that keys are told apart by are all the same."""
    now_ns, received = 0, []
    for later_ns, streams in exports * repeated:
        now_ns += later_ns if repeated == 1 else 0
        received.append((Batch(plain=None if streams is None else segments_of(streams)), now_ns))
    with pytest.MonkeyPatch.context() as patch:
        if alike:
            patch.setattr(module, "scattered", lambda ids: np.zeros(len(ids), dtype=np.uint64))
        found = [[(id(batch), at_ns) for batch, at_ns in group] for group in coalesce(received, SHORTEST_NS)]
    assert found == [[(id(batch), at_ns) for batch, at_ns in group] for group in cut(received)]
