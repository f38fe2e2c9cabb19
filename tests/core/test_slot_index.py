"""Slots are found by their keys as a dict would find them."""

from __future__ import annotations

from random import Random

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.core.kernel_modes import MODES, shown_in
from support.examples import examples

from otel_llm.core import slot_index as core
from otel_llm.core.stream_columns import INDEX_WIDTH

Ints = npt.NDArray[np.int64]
PLACES, KEYS = 8, 24
STEPS = st.lists(st.tuples(st.sampled_from(["put", "put", "put", "drop", "else"]), st.integers(0, KEYS - 1)))


def keys_of(numbers: list[int]) -> Ints:
    """Return a key for each number, in which every word tells it from some others; with zeros and negative words."""
    words = [(number % 2 - 1, number // 2 % 3 * 2**60, -(number // 6)) for number in numbers]
    return np.array(words, dtype=np.int64).reshape(-1, 3)


def found(index: Ints, seed: int, keys: Ints) -> list[int]:
    slots = np.empty(len(keys), np.int64)
    core.find(index, seed, 0, keys, slots)
    return [int(slot) for slot in slots]


def check(seed: int, steps: list[tuple[str, int]]) -> Ints:
    """Take steps in an index and in a dict, up to the last place but one."""
    index, known, keys = np.zeros((PLACES, INDEX_WIDTH), np.int64), dict[int, int](), keys_of(list(range(KEYS)))
    for slot, (step, number) in enumerate(steps):
        if step == "put" and (number in known or len(known) < PLACES - 1):
            core.put(index, seed, 0, keys[number], slot)
            known[number] = slot
        elif step == "drop":
            core.drop(index, seed, 0, keys[number], known.pop(number, 0))
        elif step == "else":
            core.drop(index, seed, 0, keys[number], slot)  # another has the key
        assert found(index, seed, keys) == [known.get(one, -1) for one in range(KEYS)]
    larger = np.zeros((2 * PLACES, INDEX_WIDTH), np.int64)
    core.move(index, seed, larger)
    assert found(larger, seed, keys) == [known.get(one, -1) for one in range(KEYS)]
    return np.concatenate((index, larger))


@given(st.integers(0, 2**62), STEPS)
def test_they_are_found_as_in_a_dict_in_an_index_that_is_nearly_full(seed: int, steps: list[tuple[str, int]]) -> None:
    check(seed, steps)


def test_keys_that_differ_little_are_scattered() -> None:
    """Of keys as senders of poor randomness make them few share their first place: by chance it is one in three."""
    for word, shift in ((0, 0), (1, 20), (2, 0), (2, 56), (0, 40)):
        keys = np.ones((256, 3), np.int64)
        keys[:, word] = np.arange(256) << shift
        index = np.zeros((512, INDEX_WIDTH), np.int64)
        for slot in range(256):
            core.put(index, 12345, 0, keys[slot], slot)
        taken = np.flatnonzero(index[:, 3])
        runs = np.split(taken, np.flatnonzero(np.diff(taken) > 1) + 1)
        assert max(map(len, runs)) < 40


def drawn(seed: int) -> bytes:
    random = Random(seed)
    steps = [(random.choice(("put", "put", "put", "drop", "else")), random.randrange(KEYS)) for _ in range(200)]
    return check(random.getrandbits(62), steps).tobytes()


def test_they_are_found_as_in_a_dict_after_many_steps() -> None:
    for seed in range(examples(30)):
        drawn(seed)


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_places_them_alike(mode: dict[str, str]) -> None:
    assert shown_in(mode, "core.test_slot_index", "drawn(1).hex()") == drawn(1).hex()
