"""What is over is remembered: exactly the last ones, and no more than twice as many as asked for."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from otel_llm.evaluate.tombstones import Tombstones
from otel_llm.formats.records import RequestKey


def key(number: int) -> RequestKey:
    return number.to_bytes(16, "big"), bytes(7) + b"\x01", "default"


@settings(max_examples=examples(50))
@given(
    st.sampled_from([1, 3, 10]),
    st.lists(st.tuples(st.integers(0, 39), st.sampled_from([0, 0, 1, 127])), min_size=1, max_size=150),
)
def test_the_last_are_remembered_with_their_choices_and_memory_is_bounded(
    most: int, added: list[tuple[int, int]]
) -> None:
    finished, reported = Tombstones(most), dict[int, set[int]]()
    for number, choice in added:
        known = set(finished.choices(key(number)))
        finished.add(key(number), choice)
        reported[number] = {*reported.pop(number, set()), choice}  # the last at the end
        assert len(finished) <= 2 * most
        assert set(finished.choices(key(number))) == known | {choice}
        for recent in list(reported)[-most:]:
            assert key(recent) in finished
            assert finished.has(key(recent), choice) == (choice in set(finished.choices(key(recent))))
        for one, choices in reported.items():
            assert set(finished.choices(key(one))) <= choices


def test_a_stream_that_never_was_is_not_remembered() -> None:
    finished = Tombstones(2)
    finished.add(key(1), 1)
    assert key(2) not in finished
    assert not finished.has(key(1), 0)
    assert list(finished.choices(key(2))) == []


@given(st.integers(1, 5), st.lists(st.sampled_from(["flood", "shop", "lab"]), max_size=200))
def test_a_tenant_pushes_out_no_others(share: int, added: list[str]) -> None:
    finished, reported = Tombstones(3 * share), dict[str, list[RequestKey]]()
    for number, tenant in enumerate(added):
        one = (*key(number)[:2], tenant)
        finished.add(one, 0)
        reported.setdefault(tenant, []).append(one)
    assert all(one in finished for its in reported.values() for one in its[-share:])
    assert len(finished) <= 9 * share + 3 * share
