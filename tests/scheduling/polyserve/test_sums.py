"""Due times and expected KV, by hand and against a look at every iteration."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from otel_llm.scheduling.polyserve.due_times import DueTimes
from otel_llm.scheduling.polyserve.member import STEP, ExpectedLife


def test_due_times_move_by_the_tpot_of_each() -> None:
    due = DueTimes()
    assert due.earliest_ns(0, 0) is None
    due.add(1, 20, 500, 0)  # the token of iteration n is due at 500 + 20 n
    due.add(2, 50, 430, 1)  # at 430 + 50 (n - 1)
    assert [due.earliest_ns(n, 0) for n in (1, 3, 4, 9)] == [430, 530, 580, 680]  # 500 + 60 = 560 > 530; 580 = 580
    due.remove(2)
    due.remove(7)
    assert due.earliest_ns(1, 0) == 520


def test_a_decode_that_is_late_in_any_case_no_longer_counts() -> None:
    due = DueTimes()
    due.add(1, 20, 100, 0)
    due.add(2, 20, 300, 0)
    assert due.earliest_ns(0, 100) == 100
    assert due.earliest_ns(0, 101) == 300
    assert due.earliest_ns(0, 0) == 300, "it stays out"


def test_a_request_that_decodes_again_has_its_new_due_time() -> None:
    due = DueTimes()
    due.add(1, 20, 100, 0)
    due.remove(1)
    due.add(1, 20, 700, 5)
    assert due.earliest_ns(5, 0) == 700


def test_the_peak_stands_before_an_end() -> None:
    life = ExpectedLife()
    life.add(1, 100, 0, STEP)  # 100 + n until iteration 64
    # Alone with one of 10 + n until 128: at 64 there are 164 + 74, at 128 only 138.
    assert life.peak_kv(110, 0, 10, 0, 2 * STEP) == 238
    # With one of 300 + n until 128 the later peak is higher: 164 + 364, then 428.
    assert life.peak_kv(400, 0, 300, 0, 2 * STEP) == 528
    life.remove(1)
    life.remove(1)
    assert life.peak_kv(300, 0, 300, 0, 2 * STEP) == 428
    assert life.peak_kv(900, 0, 300, 0, 2 * STEP) == 900, "at least what is there now"


lives = st.lists(st.tuples(st.integers(1, 500), st.integers(0, 300), st.integers(1, 400)), max_size=8)


@given(lives, st.tuples(st.integers(1, 500), st.integers(1, 400)), st.integers(0, 400), st.data())
def test_the_peak_is_that_of_every_iteration(
    drawn: list[tuple[int, int, int]], new: tuple[int, int], now: int, data: st.DataObject
) -> None:
    life = ExpectedLife()
    for number, one in enumerate(drawn):
        life.add(number, *one)
    gone = data.draw(st.sets(st.integers(0, 7)))
    for number in gone:
        life.remove(number)
    left = [one for number, one in enumerate(drawn) if number not in gone] + [(new[0], now, new[1])]

    def kv(at: int) -> int:
        return sum(c + at - first for c, first, output in left if at <= -(-(first + output) // STEP) * STEP)

    last = max(-(-(first + output) // STEP) for _, first, output in left) * STEP
    assert life.peak_kv(0, now, new[0], now, new[1]) == max(kv(at) for at in range(now, last + 1))
