"""Token-arrival scripts: worked ones, the same spelt otherwise, and where a wrong one is wrong."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_llm.backtest.cases.case_parser import MOST_TOKENS, OUTCOMES, parse_arrivals
from otel_llm.rules.language.tokens import ExpressionError

MS = 1_000_000


@pytest.mark.parametrize(
    ("script", "times_ms", "kinds", "end_ms", "outcome"),
    [
        ("", [], [], None, None),
        ("300ms", [300], [0], None, None),
        ("0.3", [300], [0], None, None),
        ("300ms, 3x50ms", [300, 350, 400, 450], [0, 0, 0, 0], None, None),
        ("300ms, wait 1s, 2 x 50ms", [300, 1350, 1400], [0, 0, 0], None, None),
        ("wait 1s, wait 500ms, 100ms", [1600], [0], None, None),
        ("2x10ms reasoning, 10ms tool, 1s content, end", [10, 20, 30, 1030], [1, 1, 2, 0], 1030, "completed"),
        ("100ms, 3x0s, end error", [100, 100, 100, 100], [0, 0, 0, 0], 100, "error"),
        ("100ms, wait 2s, end cancelled", [100], [0], 2100, "cancelled"),
        ("100ms, vanish", [100], [0], 100, None),
        ("end", [], [], 0, "completed"),
        (" 500us ,\n  1m ", [0.5, 60000.5], [0, 0], None, None),
    ],
)
def test_what_a_script_means(
    script: str, times_ms: list[float], kinds: list[int], end_ms: float | None, outcome: str | None
) -> None:
    found = parse_arrivals(script)
    assert [one / MS for one in found.times_ns] == times_ms
    assert list(found.kinds) == kinds
    assert (None if found.end_ns is None else found.end_ns / MS, found.outcome) == (end_ms, outcome)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 30), st.integers(0, 5000)), max_size=12))
def test_a_count_is_so_many_items_and_a_wait_moves_what_follows(items: list[tuple[bool, int, int]]) -> None:
    short = [f"wait {ms}ms" if wait else f"{count}x{ms}ms" for wait, count, ms in items]
    steps: list[tuple[int, bool]] = []
    for wait, count, ms in items:
        steps += [(ms, False)] if wait else [(ms, True)] * count
    ends = accumulate(ms for ms, _ in steps)
    expect = [end * MS for end, (_, token) in zip(ends, steps, strict=True) if token]
    assert list(parse_arrivals(", ".join(short)).times_ns) == expect


@pytest.mark.parametrize(
    ("script", "start", "length", "says"),
    [
        ("300ms, 20y50ms", 7, 7, "'20y50ms' is no item"),
        ("300ms,", 6, 1, "an empty item"),
        (", 300ms", 0, 1, "an empty item"),
        ("300ms, 20x50mins", 10, 6, "'50mins' is no duration"),
        ("20x50ms tools", 8, 5, "'tools' is no kind of token"),
        ("1s, end compleat", 8, 8, "'compleat' is no outcome"),
        ("end, 300ms", 5, 5, "something follows the end"),
        ("vanish, end", 8, 3, "something follows the end"),
        ("0x50ms", 0, 6, "0 tokens"),
        (f"{MOST_TOKENS}x1ms, 1ms", 12, 3, "1 tokens"),
        ("wait -1s", 5, 3, "a duration is not negative"),
        ("wait", 0, 4, "'wait' is no item"),
        ("1e3", 0, 3, "'1e3' is no item"),
        ("99999999999h", 0, 12, "more than 1000000000 seconds"),
    ],
)
def test_a_wrong_script_is_refused_at_its_position(script: str, start: int, length: int, says: str) -> None:
    with pytest.raises(ExpressionError) as refused:
        parse_arrivals(script)
    assert says in str(refused.value)
    assert (refused.value.start, refused.value.end - refused.value.start) == (start, length)


@given(st.text(alphabet="0123456789xmsuh ,.waitendvanish-+e", max_size=40))
def test_any_text_is_a_script_or_refused(text: str) -> None:
    try:
        found = parse_arrivals(text)
    except ExpressionError:
        return
    assert list(found.times_ns) == sorted(found.times_ns)
    assert found.outcome in (None, *OUTCOMES)
