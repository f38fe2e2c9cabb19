"""What is put into the ring is taken out as it was, and what is still to be taken out is not written over."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_llm.collector import front_ring as module
from otel_llm.collector.front_ring import Ring

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZE = 64
MOST = 40


@pytest.fixture(autouse=True, scope="module")
def short() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MOST_BYTES", MOST)
        yield


def ends() -> tuple[Ring, Ring]:
    """Return both ends of one ring: who puts in, who takes out."""
    memory, taken = memoryview(bytearray(SIZE)), memoryview(bytearray(8)).cast("q")
    return Ring(memory, taken), Ring(memory, taken)


@given(st.lists(st.tuples(st.sampled_from(["put", "put", "take", "let go"]), st.integers(0, 50)), max_size=120))
def test_all_comes_out_as_it_went_in(steps: list[tuple[str, int]]) -> None:
    """Of any lengths; what finds no room is told, and goes another way."""
    sender, receiver = ends()
    waiting = deque[tuple[int, bytes]]()
    kept = 0
    for number, (step, length) in enumerate(steps):
        raw = bytes((number + at) % 256 for at in range(length))
        if step == "put":
            place = sender.put(raw)
            assert place is not None or length > MOST or kept
            if place is not None:
                waiting.append((place, raw))
                kept += 1
        elif step == "take" and waiting:
            place, before = waiting.popleft()
            assert receiver.take(place, len(before)) == before
        elif step == "let go":
            receiver.let_go()
            kept = len(waiting)
    while waiting:
        place, before = waiting.popleft()
        assert receiver.take(place, len(before)) == before


def test_room_is_there_again_once_it_is_given_back() -> None:
    sender, receiver = ends()
    places = [sender.put(bytes((number,)) * 32) for number in range(3)]
    assert places == [0, 32, None]
    assert receiver.take(0, 32) == bytes(32)
    assert sender.put(b"x" * 32) is None
    receiver.let_go()
    assert sender.put(b"x" * 32) == SIZE
    assert (receiver.take(32, 32), receiver.take(SIZE, 32)) == (b"\x01" * 32, b"x" * 32)


def test_it_begins_again_where_the_memory_is_warm() -> None:
    sender, receiver = ends()
    for number in range(5):
        place = sender.put(bytes((number,)) * 20)
        assert place == number * SIZE
        assert receiver.take(place, 20) == bytes((number,)) * 20
        receiver.let_go()


def test_what_does_not_fit_behind_the_last_begins_at_the_beginning() -> None:
    sender, receiver = ends()
    assert sender.put(b"a" * 30) == 0
    assert sender.put(b"b" * 20) == 30
    receiver.take(0, 30)
    receiver.let_go()
    assert sender.put(b"c" * 20) == SIZE
    assert sender.put(b"d" * 20) is None
    assert (receiver.take(30, 20), receiver.take(SIZE, 20)) == (b"b" * 20, b"c" * 20)
