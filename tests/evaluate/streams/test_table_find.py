"""Streams are found by their keys as a dict would find them."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from otel_llm.evaluate.streams.stream_table import StreamTable

if TYPE_CHECKING:
    import numpy.typing as npt

    from otel_llm.evaluate.streams.live_stream import LiveStream

ANY_STREAM = cast("LiveStream", object())
STEPS = st.lists(st.tuples(st.sampled_from(["take", "release", "find"]), st.integers(0, 60)), max_size=60)


def ids_of(numbers: list[int]) -> npt.NDArray[np.int64]:
    """Return a key for each number, in which every word tells it from some others."""
    words = [(1 + number % 3, 1 + number // 3 % 4, 1 + number // 12) for number in numbers]
    return np.array(words, dtype=np.int64).reshape(-1, 3)


@given(steps=STEPS)
def test_they_are_found_as_in_a_dict(steps: list[tuple[str, int]]) -> None:
    """Also if a slot or a key is another stream's by now."""
    table, known = StreamTable(first_slots=4), dict[int, int]()
    for step, number in steps:
        key = ids_of([number]).tobytes()
        if step == "take" and number not in known:
            known[number] = table.take(ANY_STREAM, key)
        elif step == "release" and number in known:
            table.release(known.pop(number), key)
        requested = list(range(60)) if step == "find" else [number, 3, 59]
        assert table.find(ids_of(requested)).tolist() == [known.get(one, -1) for one in requested]


def test_the_last_that_took_a_key_has_it() -> None:
    table, ids = StreamTable(), ids_of([*range(48)])
    slots = [table.take(ANY_STREAM, key.tobytes()) for key in ids]
    assert table.find(ids).tolist() == slots
    slots[7] = table.take(ANY_STREAM, ids[7].tobytes())
    assert table.find(ids).tolist() == slots
    table.release(7, ids[7].tobytes())  # another has the key
    assert table.find(ids).tolist() == slots
