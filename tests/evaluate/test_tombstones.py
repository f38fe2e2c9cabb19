"""What is over is remembered: exactly the last ones, and no more than twice as many as asked for."""

from __future__ import annotations

import random

import pytest

from otel_llm.evaluate.tombstones import Tombstones


def key(number: int) -> tuple[bytes, bytes]:
    return number.to_bytes(16, "big"), bytes(7) + b"\x01"


@pytest.mark.parametrize("seed", range(20))
def test_the_last_are_remembered_with_their_choices_and_memory_is_bounded(seed: int) -> None:
    rng = random.Random(seed)
    most = rng.choice([1, 3, 10])
    finished, told = Tombstones(most), dict[int, set[int]]()
    for _ in range(300):
        number, choice = rng.randrange(40), rng.choice([0, 0, 1, 127])
        known = set(finished.choices(key(number)))
        finished.add(key(number), choice)
        told[number] = {*told.pop(number, set()), choice}  # the last at the end
        assert len(finished) <= 2 * most
        assert set(finished.choices(key(number))) == known | {choice}
        for recent in list(told)[-most:]:
            assert key(recent) in finished
            assert finished.has(key(recent), choice) == (choice in set(finished.choices(key(recent))))
        for number, choices in told.items():
            assert set(finished.choices(key(number))) <= choices


def test_a_stream_that_never_was_is_not_remembered() -> None:
    finished = Tombstones(2)
    finished.add(key(1), 1)
    assert key(2) not in finished
    assert not finished.has(key(1), 0)
    assert list(finished.choices(key(2))) == []
