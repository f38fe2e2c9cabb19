"""Streams handed on while they come are those that are there at the end, however the input is cut and bounded."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.chance import chances
from support.core.core_fleets import Delivery, Fleet, fleet
from support.examples import examples
from support.otlp import IDENTITY, T0_NS, Value, export, request_span, segment_span, token

from otel_llm import semconv
from otel_llm.evaluate.timers import Timeouts
from otel_llm.formats.assemble.assembler import Assembler
from otel_llm.formats.assemble.resolved import row_order
from otel_llm.formats.assemble.stream_assembler import StreamAssembler
from otel_llm.formats.assemble.stream_columns import Streams
from otel_llm.formats.batch import Batch
from otel_llm.formats.otlp.export_request import decode
from otel_llm.rules.files.ruleset import RuleSet
from otel_llm.slo.classes import SloClass, SloClasses


def received(drawn: Fleet, *, columns: bool) -> list[tuple[Batch, int | None]]:
    """Return what the export requests of a fleet hold."""
    return [(one.batch(columns=columns), one.receipt_ns) for one in drawn.deliveries]


def kept(drawn: Fleet) -> tuple[list[Any], Counter[str]]:
    """Return the streams that an assembler gives that keeps everything to the end."""
    assembler = Assembler()
    for delivery in drawn.deliveries:
        assembler.add(decode(export(*delivery.spans), delivery.receipt_ns))
    return [(one.resolved, list(one.times_ns), one.kinds) for one in assembler.finish()], +assembler.counts


def ordered(parts: list[Streams]) -> list[Any]:
    found = []
    for part in parts:
        for index, resolved in enumerate(part.resolved):
            times = part.times_ns[part.offsets[index] : part.offsets[index + 1]].tolist()
            found.append((resolved, times, part.kinds[index]))
    return sorted(found, key=lambda one: row_order(one[0]))


def streamed(
    batches: list[tuple[Batch, int | None]], size: int, held_bytes: int, kept_bytes: int = 10**9
) -> tuple[list[Any], Counter[str], int]:
    """Return the streams, what was counted, and how many were handed on before the end."""
    assembler = StreamAssembler(held_bytes=held_bytes, kept_bytes=kept_bytes)
    early = [assembler.take(batches[at : at + size]) for at in range(0, len(batches), size)]
    late = list(assembler.finish())
    return ordered([*early, *late]), +assembler.counts, sum(map(len, early))


@settings(max_examples=examples(60))
@given(chances(), st.sampled_from([1, 2, 7, 10**6]), st.sampled_from([0, 3_000, 10**9]), st.sampled_from([0, 10**9]))
def test_streams_are_those_of_the_end_at_any_batch_size_and_bound(
    random: Random, size: int, held_bytes: int, kept_bytes: int
) -> None:
    drawn = fleet(random, calm=random.random() < 1 / 3)
    wanted, counts = kept(drawn)
    found, counted, _ = streamed(received(drawn, columns=random.choice((True, False))), size, held_bytes, kept_bytes)
    assert found == wanted
    assert counted == counts


END: dict[str, Value] = {semconv.OUTCOME: "completed", semconv.TOKENS: 4, semconv.TOKEN_BASIS: "exact"}
Cut = tuple[int, int, list[int]]


def sent(cuts: list[Cut], *, choice: int = 0, request: bool = True, reported: dict[str, Value] = END) -> list[Span]:
    """Return segments (number, first token, arrivals in ms), if the last one ends the stream, and the request."""
    spans = [
        segment_span(
            seq,
            first,
            [token(T0_NS + at * 10**6) for at in arrivals],
            choice=choice,
            start_ns=T0_NS,
            end_ns=T0_NS + 10**9,
            attributes=reported if index == len(cuts) - 1 else {semconv.GEN_AI_REQUEST_MODEL: "m"} if not seq else None,
        )
        for index, (seq, first, arrivals) in enumerate(cuts)
    ]
    whole = request_span(start_ns=T0_NS, end_ns=T0_NS + 10**9)
    return [*spans, *([whole] if request else [])]


STREAMS: dict[str, list[Span]] = {
    "whole": sent([(0, 0, []), (1, 0, [1, 2]), (2, 2, [3, 4])]),
    "tokens that were never sent": sent([(0, 0, []), (1, 0, [1]), (2, 2, [3, 4])]),
    "tokens said twice": sent([(0, 0, []), (1, 0, [1, 2, 3]), (2, 2, [3, 4])]),
    "fewer than declared": sent([(0, 0, []), (1, 0, [1]), (2, 1, [3])]),
    "a number that never came": sent([(0, 0, []), (2, 0, [1, 2]), (3, 2, [3, 4])]),
    "without a beginning": sent([(1, 0, [1, 2]), (2, 2, [3, 4])]),
    "another choice": sent([(0, 0, []), (1, 0, [4, 3]), (2, 2, [3, 4])]) + sent([(0, 0, []), (1, 0, [5])], choice=1),
    "a last one that leaves the end to the request": sent(
        [(0, 0, []), (1, 0, [1, 2]), (2, 2, [3, 4])], reported={semconv.OUTCOME: "completed"}
    ),
}


EARLY = {"whole", "another choice", "a last one that leaves the end to the request"}
"""What is handed on before the end: of several choices the first, if the others come later."""


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("size", [1, 2, 100])
@pytest.mark.parametrize("held_bytes", [0, 10**9])
def test_streams_that_are_odd(name: str, size: int, held_bytes: int) -> None:
    spans = STREAMS[name]
    deliveries = tuple(Delivery(T0_NS + at, (span,)) for at, span in enumerate([*spans, spans[0], spans[-1]]))
    drawn = Fleet(SloClasses((SloClass(),), "chat"), RuleSet(()), Timeouts(1, 1), 1, deliveries)
    wanted, counts = kept(drawn)
    found, counted, early = streamed(received(drawn, columns=False), size, held_bytes)
    assert (found, counted) == (wanted, counts)
    if held_bytes and size < 100:
        assert bool(early) == (name in EARLY)


SAYS_MORE: dict[str, list[Span]] = {
    "a repetition that ends the stream": [
        *sent([(0, 0, []), (1, 0, [1, 2]), (2, 2, [3, 4])], reported={}, request=False),
        *sent([(2, 2, [3, 4])], request=False),
    ],
    "one that ends it otherwise": [
        *sent([(0, 0, []), (1, 0, [1, 2]), (2, 2, [3, 4])], request=False),
        *sent([(2, 2, [3, 4])], reported={**END, semconv.OUTCOME: "error"}, request=False),
    ],
    "one that ends it in its middle": [
        *sent([(0, 0, []), (1, 0, [1, 2]), (2, 2, [3, 4])], request=False),
        *sent([(1, 0, [1, 2])], request=False),
    ],
    "one that names another model": [
        *sent([(0, 0, []), (1, 0, [1, 2]), (2, 2, [3, 4])], request=False),
        *sent([(1, 0, [1, 2])], reported={semconv.GEN_AI_RESPONSE_MODEL: "n"}, request=False),
    ],
    "one that says the same": sent([(0, 0, []), (1, 0, [1, 2]), (2, 2, [3, 4])]) + sent([(2, 2, [3, 4])]),
}


@pytest.mark.parametrize("name", SAYS_MORE)
@pytest.mark.parametrize("size", [1, 100])
@pytest.mark.parametrize("held_bytes", [0, 10**9])
@pytest.mark.parametrize(
    ("columns", "together"),
    [(False, False), (False, True), (True, False)],  # of two in one export request, read as columns, none is the first
)
def test_a_repetition_that_says_more_changes_nothing(
    name: str, size: int, held_bytes: int, columns: bool, together: bool
) -> None:
    spans = [*SAYS_MORE[name], request_span(attributes={**IDENTITY, semconv.OUTCOME: "cancelled"})]
    parts = [tuple(spans)] if together else [(span,) for span in spans]
    deliveries = tuple(Delivery(T0_NS + at, part) for at, part in enumerate(parts))
    drawn = Fleet(SloClasses((SloClass(),), "chat"), RuleSet(()), Timeouts(1, 1), 1, deliveries)
    wanted, counts = kept(drawn)
    found, counted, _ = streamed(received(drawn, columns=columns), size, held_bytes)
    assert (found, counted) == (wanted, counts)


def test_what_is_numbered_behind_the_end_of_a_stream_that_is_gone_changes_nothing() -> None:
    assembler = StreamAssembler()
    whole = [(decode(export(span), T0_NS), T0_NS) for span in STREAMS["whole"]]
    assert len(assembler.take(whole)) == 1
    late = segment_span(3, 4, [token(T0_NS)], start_ns=T0_NS, end_ns=T0_NS + 10**9)
    assert len(assembler.take([(decode(export(late), T0_NS), T0_NS)])) == 0
    assert list(assembler.finish()) == []
    assert +assembler.counts == Counter({"anomaly.segment_after_end": 1})


@pytest.mark.parametrize("outcome", [None, "completed"])
@pytest.mark.parametrize("choices", [1, 2])
def test_the_request_span_fills_what_the_last_segment_of_an_only_choice_leaves_open(
    outcome: str | None, choices: int
) -> None:
    cuts: list[Cut] = [(0, 0, []), (1, 0, [1, 2])]
    spans = [span for choice in range(choices) for span in sent(cuts, choice=choice, request=False, reported=ENDS)]
    reported = {**IDENTITY, semconv.TOKEN_BASIS: "chunk", semconv.TOKENS: 4}
    spans.append(request_span(attributes=reported if outcome is None else {**reported, semconv.OUTCOME: outcome}))
    assembler = Assembler()
    assembler.add(decode(export(*spans)))
    filled = ("chunk", 0.5) if choices == 1 else (None, 1.0)
    assert [(one.resolved.token_basis, one.resolved.coverage) for one in assembler.finish()] == [filled] * choices


ENDS: dict[str, Value] = {semconv.OUTCOME: "completed"}


def test_a_request_span_without_an_outcome_says_nothing_of_the_tokens_of_a_stream_without_an_end() -> None:
    reported = {**IDENTITY, semconv.SEGMENTS: 2, semconv.TOKENS: 0}
    assembler = Assembler()
    assembler.add(decode(export(request_span(attributes=reported))))
    (found,) = assembler.finish()
    assert (found.resolved.outcome, found.resolved.coverage, found.resolved.complete) == ("lost", 0.0, False)
