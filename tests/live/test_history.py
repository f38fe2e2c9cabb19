"""The samples for sparklines: increases by class and place of measurement, for some minutes, of so many classes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from otel_llm.live.history import FIELDS, History, Load, Totals

S = 1_000_000_000
CHAT, CODE = ("chat", "client"), ("code", "server")


def test_a_sample_holds_what_is_there_and_what_was_added_since_the_last() -> None:
    history = History()
    first = history.add(5 * S, {CHAT: Load(3, 1, Totals(2, 1, 40, 37.5, 2 * S))})
    second = history.add(6 * S, {CHAT: Load(4, 0, Totals(3, 1, 60, 50.0, 2 * S + S // 2)), CODE: Load(1)})

    assert FIELDS == ("key", "in_flight", "waiting", "met", "missed", "tokens_read", "smooth_tokens", "idle_s")
    assert history.keys == [CHAT, CODE]
    assert first == [5.0, [0, 3, 1, 0, 0, 0, 0.0, 0.0]], (
        "totals from before the first sample have no second of their own"
    )
    assert second == [6.0, [0, 4, 0, 1, 0, 20, 12.5, 0.5], [1, 1, 0, 0, 0, 0, 0.0, 0.0]]
    assert history.samples == [first, second]


def test_a_class_that_is_gone_for_a_while_goes_on_where_it_was() -> None:
    history = History()
    history.add(S, {CHAT: Load(totals=Totals(tokens_read=10))})
    assert history.add(2 * S, {}) == [2.0]
    assert history.add(3 * S, {CHAT: Load(totals=Totals(tokens_read=25))})[1][5] == 15


def test_only_so_many_samples_and_classes_are_kept() -> None:
    history = History(most_samples=3, most_keys=2)
    for second in range(5):
        history.add(second * S, {(f"class {number}", "client"): Load(second) for number in range(4)})
        assert history.left_out == 2
    assert [sample[0] for sample in history.samples] == [2.0, 3.0, 4.0]
    assert all(len(sample) == 3 for sample in history.samples)
    assert history.keys == [("class 0", "client"), ("class 1", "client")]


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99), st.integers(0, 10**4)), min_size=1, max_size=20))
def test_the_samples_add_up_to_the_counters(increases: list[tuple[int, int, int]]) -> None:
    history, totals = History(), Totals()
    history.add(0, {})
    for second, (met, missed, read) in enumerate(increases):
        totals = totals.plus(Totals(met, missed, read, float(read), met * S))
        history.add((second + 1) * S, {CHAT: Load(totals=totals)})
    columns = list(zip(*(sample[1] for sample in history.samples[1:]), strict=True))
    assert [sum(column) for column in columns[3:]] == [
        totals.met, totals.missed, totals.tokens_read, totals.tokens_read, totals.met,
    ]  # fmt: skip
