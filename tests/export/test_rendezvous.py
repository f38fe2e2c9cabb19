"""The choice of a collector by trace id: even, stable under change of the list, and independent of its order."""

from __future__ import annotations

import math
import random
from collections import Counter
from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_llm.export.routing import Rendezvous

names = st.lists(st.text(min_size=1, max_size=30), min_size=1, max_size=9, unique=True)
traces = st.lists(st.integers(1, 2**128 - 1), min_size=1, max_size=30)

POD = "http://otel-llm-collector-{}.otel-llm-collector.observability.svc:4317"
IDS = 12_000


def choices(known: list[str], ids: list[int]) -> list[str]:
    rendezvous = Rendezvous(known)
    return [rendezvous.choose(one) for one in ids]


@given(names, traces)
def test_it_is_the_name_with_the_largest_hash(known: list[str], ids: list[int]) -> None:
    def weight(name: str, trace: int) -> bytes:
        return blake2b(name.encode() + trace.to_bytes(16, "big"), digest_size=8).digest()

    assert choices(known, ids) == [max((weight(name, trace), name) for name in known)[1] for trace in ids]


@given(names, traces, st.randoms(use_true_random=False))
def test_the_order_of_the_list_does_not_matter(known: list[str], ids: list[int], chance: random.Random) -> None:
    assert choices(chance.sample(known, len(known)), ids) == choices(known, ids)


@given(names, traces, st.text(min_size=1, max_size=30))
def test_one_that_is_added_takes_traces_and_moves_no_other(known: list[str], ids: list[int], added: str) -> None:
    before, after = choices(known, ids), choices([*{*known, added}], ids)
    assert all(now in (was, added) for was, now in zip(before, after, strict=True))


@given(names.filter(lambda known: len(known) > 1), traces)
def test_one_that_is_taken_out_moves_its_own_traces_alone(known: list[str], ids: list[int]) -> None:
    before, after = choices(known, ids), choices(known[1:], ids)
    assert all(now == was for was, now in zip(before, after, strict=True) if was != known[0])


def random_ids(seed: int) -> list[int]:
    return [random.Random(seed * IDS + i).getrandbits(128) for i in range(IDS)]


def counted_ids() -> list[int]:
    """Return ids that differ in their last bits only: hashing must spread them, too."""
    return list(range(1, IDS + 1))


def clocked_ids() -> list[int]:
    """Return ids as X-Ray has them: seconds first, here 100 of them, then random bits."""
    return [(1_790_000_000 + i % 100) << 96 | random.Random(i).getrandbits(96) for i in range(IDS)]


@pytest.mark.parametrize("ids", [random_ids(1), counted_ids(), clocked_ids()], ids=["random", "counted", "clocked"])
@pytest.mark.parametrize("size", [2, 3, 8])
def test_the_spread_is_even_and_one_more_takes_its_share(size: int, ids: list[int]) -> None:
    """Both counts are binomial: within six standard deviations, which one run in 5e8 is not."""
    known = [POD.format(i) for i in range(size)]
    before, after = choices(known, ids), choices([*known, POD.format(size)], ids)

    def near(count: int, share: float) -> bool:
        return abs(count - IDS * share) < 6 * math.sqrt(IDS * share * (1 - share))

    assert all(near(Counter(before)[name], 1 / size) for name in known)
    assert near(sum(was != now for was, now in zip(before, after, strict=True)), 1 / (size + 1))


DIGESTS = {
    1: ["14ee08ef97044c0a", "e3fbfe275b5639f5", "34a5b09eb58d58a6"],
    2: ["0e38603d5d477d57", "1e968c998ee2b992", "14adaa17ea279556"],
    0x0123456789ABCDEF0123456789ABCDEF: ["908b8acc02ed3338", "df339ddd5d684984", "54c262f7f85c191a"],
}
"""By trace id: `b2sum --length 64` (coreutils) of each name followed by the 16 bytes of the id."""


@pytest.mark.parametrize("trace_id", DIGESTS)
def test_the_choice_is_that_of_every_release(trace_id: int) -> None:
    """Another hash would move the streams of a fleet whose processes are updated one by one."""
    known = [POD.format(number) for number in range(3)]
    digests = DIGESTS[trace_id]
    assert choices(known, [trace_id]) == [known[digests.index(max(digests))]]
