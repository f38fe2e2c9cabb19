"""Recorded tokens resampled to the total that a reply states: worked by hand, and beside the definition."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.slo.stated_total import Token, by_definition
from support.vectors import FOLDER

from otel_llm.slo.classes import KINDS
from otel_llm.slo.stated_total import Stated, restated

REPLIES = json.loads((FOLDER / "counting.vectors.json").read_text(encoding="utf-8"))["replies"]


def tokens_of(runs: list[list[Any]]) -> list[Token]:
    return [
        (round(at_s * 1e9), KINDS.index(kind[0] if kind else "content"))
        for at_s, count, *kind in runs
        for _ in range(count)
    ]


def of(tokens: list[Token], commit_ns: int, stated: Stated) -> list[Token] | None:
    kinds = bytes(kind for _, kind in tokens)
    found = restated([at for at, _ in tokens], kinds if any(kinds) else None, None, commit_ns, stated)
    if found is None:
        return None
    times, codes = found.expanded()
    return list(zip(times.tolist(), bytes(len(times)) if codes is None else codes, strict=True))


@pytest.mark.parametrize("reply", REPLIES, ids=lambda reply: reply["name"])
def test_the_worked_replies(reply: dict[str, Any]) -> None:
    stated = Stated(
        reply["outcome"], reply["coverage"], reply["token_basis"], reply["output_tokens"], reply["reasoning_tokens"]
    )
    found = of(tokens_of(reply["tokens"]), round(reply["commit_s"] * 1e9), stated)
    assert found == (None if reply["expect"] is None else tokens_of(reply["expect"]))


recordings = st.lists(st.tuples(st.integers(0, 40), st.sampled_from([0, 0, 0, 1, 2])), max_size=30)
statements = st.builds(
    Stated,
    st.sampled_from(["completed", "completed", "completed", "cancelled", "lost"]),
    st.sampled_from([1.0, 1.0, 1.0, None, 0.5]),
    st.sampled_from(["chunk", "estimated", "exact", None]),
    st.none() | st.integers(0, 300) | st.just(2**63 - 1),
    st.none() | st.integers(0, 300),
)


@settings(max_examples=examples(600))
@given(tokens=recordings, commit_ns=st.integers(0, 20), stated=statements)
def test_it_is_the_definition(tokens: list[Token], commit_ns: int, stated: Stated) -> None:
    found, expected = of(tokens, commit_ns, stated), by_definition(tokens, commit_ns, stated)
    placed = sorted((max(at, commit_ns), kind) for at, kind in tokens)
    if expected is None or Counter(expected) == Counter(placed):
        assert found is None
        return
    assert found is not None
    if {kind for _, kind in expected} == {kind for _, kind in placed}:
        assert found == expected
    assert len(found) == len(expected)


@settings(max_examples=examples(300))
@given(tokens=recordings.filter(bool), total=st.integers(1, 300))
def test_arrivals_stay(tokens: list[Token], total: int) -> None:
    """The first and the last arrival stay; with at least as many tokens as recorded all do, in their shares."""
    text = [(at, 0) for at, _ in tokens]
    found = of(text, 0, Stated("completed", 1.0, "chunk", total))
    if found is None:
        return
    arrivals, recorded = [at for at, _ in found], sorted(at for at, _ in text)
    assert len(found) == total
    assert arrivals[0] == recorded[0]
    assert total == 1 or arrivals[-1] == recorded[-1]
    assert set(arrivals) <= set(recorded)
    if total >= len(recorded):
        counts, shares = Counter(arrivals), Counter(recorded)
        assert counts.keys() == shares.keys()
        for at, share in shares.items():
            assert abs(counts[at] - share * total / len(recorded)) < 1


@settings(max_examples=examples(300))
@given(tokens=recordings.filter(bool), total=st.integers(4, 60))
def test_a_kind_that_was_recorded_keeps_a_token(tokens: list[Token], total: int) -> None:
    plain = [(at, 2 if kind else 0) for at, kind in tokens]
    found = of(plain, 0, Stated("completed", 1.0, "chunk", total))
    if found is not None:
        assert {kind for _, kind in found} == {kind for _, kind in plain}
