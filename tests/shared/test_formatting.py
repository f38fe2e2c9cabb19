"""Numbers and foreign strings as words."""

from __future__ import annotations

import pytest

from otel_llm.shared.formatting import instant, number, plural, seconds, share, truth
from otel_llm.shared.printable import MISSING, printable


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, MISSING),
        (0.0, "0 s"),
        (0.45, "450 ms"),
        (0.0000005, "0.5 µs"),
        (0.9999, "1 s"),
        (1.25, "1.25 s"),
        (99.96, "100 s"),
        (125.0, "2 min 5 s"),
        (7300.0, "2 h 1 min"),
        (-0.25, "-250 ms"),
        (-125.0, "-2 min 5 s"),
    ],
)
def test_durations_read_as_a_person_writes_them(value: float | None, words: str) -> None:
    assert seconds(value) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [(None, MISSING), (0, "0"), (1234, "1,234"), (0.256410, "0.256"), (12.52, "12.5"), (1250.4, "1,250"), (-7.0, "-7")],
)
def test_numbers_keep_three_digits_and_integers_all(value: float | None, words: str) -> None:
    assert number(value) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, MISSING),
        (1.0, "100 %"),
        (0.99999, "> 99.99 %"),
        (0.0, "0 %"),
        (0.00001, "< 0.01 %"),
        (0.99, "99 %"),
        (0.9897, "98.97 %"),
        (0.985, "98.5 %"),
    ],
)
def test_a_share_reads_all_or_nothing_only_where_it_is(value: float | None, words: str) -> None:
    assert share(value) == words


def test_null_reads_neither_as_good_nor_as_bad() -> None:
    assert [truth(True), truth(False), truth(None)] == ["yes", "no", "cannot say"]


def test_an_instant_beyond_the_calendar_is_a_number() -> None:
    assert instant(1_790_000_000_123_456_789) == "2026-09-21 14:13:20.123"
    assert instant(10**30) == f"{10**30} ns"
    assert instant(None) == MISSING


def test_plurals() -> None:
    assert [plural(1, "stall"), plural(0, "stall"), plural(1200, "reply", "replies")] == [
        "1 stall",
        "0 stalls",
        "1,200 replies",
    ]


def test_control_and_direction_characters_become_visible_and_length_is_bounded() -> None:
    assert printable("a\x1b[31mb\u202ec\nd") == "a\\u{1b}[31mb\\u{202e}c\\u{a}d"
    assert printable("héllo — 模型 🙂") == "héllo — 模型 🙂"
    assert printable("x" * 100, 10) == "x" * 9 + "…"
    assert printable("\ud800") == "\\u{d800}"
    assert printable(None) == MISSING
