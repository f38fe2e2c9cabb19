"""The scalar, vectorised and streaming forms against the worked requests, a naive oracle, and each other."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.slo import oracle
from support.slo.requests import Request, cases, requests, slo_classes
from support.vectors import Vector, vectors

from otel_llm.slo.batch.many import judge_many
from otel_llm.slo.batch.ragged import LONG
from otel_llm.slo.batch.recorded import Recorded
from otel_llm.slo.classes import SloClass
from otel_llm.slo.metrics import COMPUTED, Cell
from otel_llm.slo.request import judge
from otel_llm.slo.stream import Stream
from otel_llm.slo.verdict import Verdict


def scalar(slo: SloClass, request: Request) -> Verdict:
    return judge(
        request.tokens_ns,
        request.commit_ns,
        request.end_ns,
        request.outcome,
        slo,
        request.kinds,
        request.input_tokens,
    )


def streamed(slo: SloClass, request: Request, cut: int) -> Verdict:
    stream = Stream(slo, request.commit_ns, request.input_tokens)
    for start in range(0, len(request.tokens_ns), cut):
        kinds = None if request.kinds is None else request.kinds[start : start + cut]
        stream.extend(request.tokens_ns[start : start + cut], kinds)
    return stream.finish(request.end_ns, request.outcome)


def recorded(found: list[Request]) -> Recorded:
    return Recorded.of(
        [request.tokens_ns for request in found],
        [request.commit_ns for request in found],
        [request.end_ns for request in found],
        [request.outcome for request in found],
        [request.kinds for request in found],
        [request.input_tokens for request in found],
    )


def request_of(vector: Vector) -> Request:
    return Request(vector.tokens_ns, vector.kinds, vector.commit_ns, vector.end_ns, vector.outcome, None)


def assert_cells(found: dict[str, Cell], expected: dict[str, oracle.Exact]) -> None:
    assert set(expected) <= set(found)
    for name, value in expected.items():
        if value is None or isinstance(value, (bool, int)):
            assert found[name] == value, name
            assert (found[name] is None) == (value is None), name
        else:
            assert found[name] == pytest.approx(float(value), rel=1e-9, abs=1e-9), name


@pytest.mark.parametrize("vector", vectors(), ids=lambda vector: vector.name)
def test_the_worked_requests(vector: Vector) -> None:
    request = request_of(vector)
    found = scalar(vector.slo, request)
    assert_cells(found.columns(), dict(vector.expect))
    assert streamed(vector.slo, request, 1) == found
    assert streamed(vector.slo, request, 7) == found
    assert judge_many(recorded([request]), [vector.slo]).verdicts() == [found]


def test_all_55_worked_requests_are_there_and_judged_at_once() -> None:
    classes = list(dict.fromkeys(vector.slo for vector in vectors()))
    many = judge_many(
        recorded([request_of(vector) for vector in vectors()]),
        classes,
        np.array([classes.index(vector.slo) for vector in vectors()]),
    )
    assert many.verdicts() == [scalar(vector.slo, request_of(vector)) for vector in vectors()]
    assert len(many) == 55


@settings(max_examples=examples(400))
@given(cases())
def test_the_scalar_form_agrees_with_the_oracle(case: tuple[SloClass, Request]) -> None:
    slo, request = case
    expected = oracle.judged(
        request.tokens_ns, request.commit_ns, request.end_ns, request.outcome, slo, request.kinds, request.input_tokens
    )
    found = scalar(slo, request).columns()
    assert tuple(found) == tuple(COMPUTED)
    assert set(expected) == set(found)
    assert_cells(found, expected)


@settings(max_examples=examples(400))
@given(cases(), st.integers(1, 13))
def test_the_streaming_form_agrees_to_the_bit_for_every_cut(case: tuple[SloClass, Request], cut: int) -> None:
    slo, request = case
    assert streamed(slo, request, cut) == scalar(slo, request)


@settings(max_examples=examples(200))
@given(
    st.sampled_from((1, 7, 1_000_003, LONG // 3)).flatmap(
        lambda scale: st.tuples(
            st.lists(slo_classes(scale), min_size=1, max_size=3), st.lists(requests(scale), max_size=8), st.randoms()
        )
    )
)
def test_the_vectorised_form_agrees_to_the_bit(case: tuple[list[SloClass], list[Request], Random]) -> None:
    classes, found, random = case
    index = [random.randrange(len(classes)) for _ in found]
    many = judge_many(recorded(found), classes, np.array(index, np.intp))
    expected = [scalar(classes[code], request) for code, request in zip(index, found, strict=True)]
    assert many.verdicts() == expected
    for name in COMPUTED:
        column = many.column(name)
        cells = [value.item() if known else None for value, known in zip(*column, strict=True)]
        assert cells == [verdict.columns()[name] for verdict in expected], name


@given(cases(), st.randoms())
def test_the_order_of_records_changes_nothing(case: tuple[SloClass, Request], random: Random) -> None:
    slo, request = case
    order = list(range(len(request.tokens_ns)))
    random.shuffle(order)
    shuffled = replace(
        request,
        tokens_ns=[request.tokens_ns[index] for index in order],
        kinds=None if request.kinds is None else [request.kinds[index] for index in order],
    )
    assert scalar(slo, shuffled) == scalar(slo, request)


@given(cases(), st.integers(-(10**18), 10**18))
def test_the_axis_of_the_times_changes_nothing(case: tuple[SloClass, Request], shift: int) -> None:
    slo, request = case
    moved = request.moved(shift)
    assert scalar(slo, moved) == scalar(slo, request)
    assert streamed(slo, moved, 5) == scalar(slo, request)


def test_an_unknown_outcome_is_refused() -> None:
    with pytest.raises(ValueError, match="completed, cancelled, abandoned, disconnected, error, lost"):
        judge([1], 0, 2, "stopped", SloClass())


def test_tokens_before_the_commit_count_as_at_the_commit() -> None:
    verdict = judge([90, 95, 100, 130], 100, 140, "completed", SloClass())
    assert verdict.skewed == 2
    assert verdict.ttft_ns == 0
    assert verdict.tbt_max_ns == 30


def test_an_end_before_the_last_token_is_the_last_token() -> None:
    assert judge([10, 50], 0, 20, "cancelled", SloClass()).e2e_ns == 50


def test_a_lost_request_has_an_end_but_no_e2e() -> None:
    verdict = judge([10, 50], 0, 70, "lost", SloClass())
    assert verdict.end_ns == 70
    assert verdict.e2e_ns is None
    assert verdict.columns()["normalized_latency_s"] is None
