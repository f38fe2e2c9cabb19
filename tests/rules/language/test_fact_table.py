"""One declared table of facts: what the contract lists, and what is read.

A new fact of a stream goes into `STREAM`, the contract; the docstring of `otel_llm/rules/language/facts.py` has the
other steps.
"""

from __future__ import annotations

from typing import Any

import pytest
from rules.scripted import COMMIT, MS, S, View

from otel_llm.rules.language.facts import FACTS, LABELS, STREAM_FACTS, WINDOW_FACTS, WINDOWS, Scope, in_scope
from otel_llm.rules.language.snapshot import COUNTING, IDENTITY, READ, Snapshot
from otel_llm.slo.classes import Curve, Fluidity, SloClass
from otel_llm.slo.stream import Stream

STREAM = {
    "slo_class": "string", "model": "string", "instance": "string", "measured_at": "string",
    "tokens": "int", "tokens_read": "int",
    "age_seconds": "double", "ttft_seconds": "double", "gap_seconds": "double",
    "silence_seconds": "double", "idle_seconds": "double", "idle_decode_seconds": "double", "runway_seconds": "double",
    "rate_tokens_per_second": "double", "deadlines": "int", "deadline_misses": "int", "fluidity_index": "double",
    "fact_age_seconds": "double", "exact_resume": "bool", "token_basis": "string", "token_ratio_learned": "bool",
}  # fmt: skip
PYTHON = {"string": str, "int": int, "double": float, "bool": bool}


def test_the_facts_of_a_stream_are_those_of_the_contract() -> None:
    steps = "add a new fact as the docstring of otel_llm/rules/language/facts.py says"
    assert {fact.name: fact.type for fact in STREAM_FACTS} == STREAM, steps
    assert list(READ) == sorted(READ, key=lambda name: list(READ).index(name))
    assert set(READ) == set(STREAM)


def test_the_facts_of_windows_are_those_of_the_contract() -> None:
    assert WINDOWS == ("1m", "5m", "30m", "1h", "6h", "3d")
    stems = ["requests", "attainment", "burn_rate", "smooth_goodput", "goodput", "idle_p99", "fluidity_ok_share"]
    names = {f"{stem}_{window}" for stem in (*stems, "queue_p99", "cut_share", "aborted_share") for window in WINDOWS}
    assert {fact.name for fact in WINDOW_FACTS} == names | {"streams", "starving", "starving_share"}
    scopes: tuple[Scope, ...] = ("instance", "class")
    for scope in scopes:
        assert names <= set(in_scope(scope))
        assert not {"gap_seconds", "tokens"} & set(in_scope(scope))
    assert "instance" in in_scope("instance")
    assert "instance" not in in_scope("class")
    assert {FACTS[f"{stem}_5m"].type for stem in stems[1:]} == {"double"}
    assert {FACTS[name].type for name in ("requests_5m", "streams", "starving")} == {"int"}


def test_labels_and_identity_are_facts_that_do_not_change() -> None:
    assert set(LABELS) < set(IDENTITY)
    for name in IDENTITY:
        assert not FACTS[name].ages
        assert not FACTS[name].timed


def view(tokens_ms: list[int], kinds: list[int] | None = None, slo: SloClass | None = None) -> View:
    stream = Stream(slo or SloClass(), COMMIT)
    stream.extend([COMMIT + at * MS for at in tokens_ms], kinds)
    counted: dict[str, Any] = {"token_basis": "estimated", "token_ratio_learned": False}
    return View(stream, exact_resume=True, watermark_ns=COMMIT + S, **counted)


@pytest.mark.parametrize("tokens", [[], [100], [100, 100], [100, 300, 5000]])
def test_every_fact_has_its_type_or_is_missing(tokens: list[int]) -> None:
    shown = view(tokens)
    snapshot = Snapshot(shown)
    x = shown.stream.last_ns + 700 * MS
    missing = set()
    for name, kind in STREAM.items():
        value = snapshot.value(name, x)
        if value is None:
            missing.add(name)
        else:
            assert type(value) is PYTHON[kind], name
            assert value == value, name
    if not tokens:
        assert missing == {"ttft_seconds", "rate_tokens_per_second", "fluidity_index", *COUNTING}
    elif len(set(tokens)) == 1:
        assert missing == {"rate_tokens_per_second"}
    else:
        assert not missing


def test_values_before_the_first_token() -> None:
    snapshot = Snapshot(view([]))
    at = COMMIT + 700 * MS
    values = {name: snapshot.value(name, at) for name in ("tokens", "tokens_read", "age_seconds", "gap_seconds")}
    assert values == {"tokens": 0, "tokens_read": 0, "age_seconds": 0.7, "gap_seconds": 0.7}
    assert snapshot.value("idle_seconds", at) == 0.5
    assert snapshot.value("idle_decode_seconds", at) == 0.0
    assert snapshot.value("runway_seconds", at) == -0.5
    assert snapshot.value("deadlines", COMMIT + 1120 * MS) == 3
    assert snapshot.value("fluidity_index", COMMIT + 1120 * MS) == 0.0


def test_values_after_some_tokens() -> None:
    # Content at 100 and 300, reasoning at 400: the reader reads two, all three count for the gap.
    snapshot = Snapshot(view([100, 300, 400], [0, 0, 1]))
    at = COMMIT + 900 * MS
    assert (snapshot.value("tokens", at), snapshot.value("tokens_read", at)) == (3, 2)
    assert (snapshot.value("ttft_seconds", at), snapshot.value("gap_seconds", at)) == (0.1, 0.5)
    assert snapshot.value("runway_seconds", at) == -0.4
    assert snapshot.value("rate_tokens_per_second", at) == 5.0


def test_without_the_prompts_length_a_curve_has_no_deadlines() -> None:
    slo = SloClass(fluidity=Fluidity(ttft=Curve(((10, 100),))))
    snapshot = Snapshot(view([100], slo=slo))
    for name in ("deadlines", "deadline_misses", "fluidity_index"):
        assert snapshot.value(name, COMMIT + S) is None
