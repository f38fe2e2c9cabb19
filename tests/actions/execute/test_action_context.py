"""Whom `preempt` would take, and by which id an engine knows a request, read from the streams in flight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

from actions.orders import decision
from hypothesis import given, settings
from support.chance import chances
from support.examples import examples
from support.live import Live
from support.otlp import IDENTITY, T0_NS, export, segment_span, span_id, trace_id

from otel_llm import semconv
from otel_llm.actions.sinks.action_context import MOST_CANDIDATES, ActionContext
from otel_llm.formats.otlp.export_request import read
from otel_llm.slo.classes import SloClass, SloClasses

MS = 1_000_000
CLASSES = SloClasses(
    (SloClass(name="chat"), SloClass(name="batch", priority=-5), SloClass(name="voice", priority=7)), default="chat"
)
AT_NS = T0_NS + 900 * MS


def flying(streams: Mapping[int, tuple[str, str, int]], attributes: Mapping[str, Any] | None = None) -> Live:
    """Return an evaluator with these streams in flight: by number, class, instance, tokens so far."""
    live = Live(classes=CLASSES)
    spans = []
    for number, (slo_class, instance, tokens) in streams.items():
        identity = {**IDENTITY, semconv.SLO_CLASS: slo_class, semconv.INSTANCE: instance, **(attributes or {})}
        spans.append(segment_span(request=number, attributes=identity))
        times = [T0_NS + (1 + at) * MS for at in range(tokens)]
        end_ns = T0_NS + 800 * MS
        spans.append(segment_span(1, 0, times, request=number, end_ns=end_ns, start_ns=T0_NS))
    batch = read(export(*spans).SerializeToString())
    batch.received(AT_NS - 90 * MS)
    live.evaluator.apply(batch, AT_NS - 90 * MS)
    return live


def preempt(number: int | None, instance: str = "a", **of: Any) -> Any:
    made = decision(number or 1, action="preempt", instance=instance, now_ns=AT_NS, stream=number is not None, **of)
    return replace(made, mode="shadow", outcome=of.get("outcome", "shadow"))


def test_the_lowest_priority_goes_first_then_the_largest_runway() -> None:
    streams = {
        1: ("chat", "a", 1),
        2: ("chat", "a", 9),
        3: ("batch", "a", 2),
        4: ("batch", "a", 5),
        5: ("batch", "b", 50),
        6: ("voice", "a", 80),
    }
    context = ActionContext.of_evaluator(flying(streams).evaluator)
    found = context.candidates(preempt(1))
    assert [int.from_bytes(one.key[0], "big") for one in found] == [4, 3, 2]
    assert [one.priority for one in found] == [-5, -5, 0]
    # Five tokens at 5 tokens/s, read from 1 ms after the commit on: up to 1.001 s. The stream's now is 890 ms: the
    # segment that ended at 800 ms came at 810 ms, and now it is 90 ms later.
    assert found[0].runway_seconds == 0.111
    assert [int.from_bytes(one.key[0], "big") for one in context.candidates(preempt(None))] == [4, 3, 2, 1, 6]
    assert [int.from_bytes(one.key[0], "big") for one in context.candidates(preempt(6))] == [4, 3, 2, 1]
    assert context.candidates(preempt(1, "nowhere")) == ()
    assert context.candidates(preempt(1, "")) == ()
    assert context.candidates(preempt(1, outcome="budget")) == ()


def test_the_streams_of_another_tenant_are_never_taken() -> None:
    live = flying({1: ("chat", "a", 1), 2: ("batch", "a", 9)})
    batch = read(export(segment_span(request=3, attributes={**IDENTITY, semconv.INSTANCE: "a"})).SerializeToString())
    batch.received(AT_NS - 80 * MS)
    batch.owned_by("acme")
    live.evaluator.apply(batch, AT_NS - 80 * MS)
    candidates = ActionContext.of_evaluator(live.evaluator).candidates
    theirs = (trace_id(3), span_id(3), "acme", 0)
    assert candidates(replace(preempt(1), stream=theirs)) == ()
    of_class = preempt(None)
    assert [one.key[0] for one in candidates(of_class)] == [trace_id(2), trace_id(1)]
    of_their_class = replace(of_class, identity={**of_class.identity, "tenant": "acme"})
    assert [one.key for one in candidates(of_their_class)] == [theirs]


@settings(max_examples=examples(20))
@given(chances())
def test_the_choice_is_that_of_sorting_all_streams(chance: Random) -> None:
    streams = {
        number: (chance.choice(["chat", "batch", "voice"]), chance.choice("ab"), chance.randrange(4))
        for number in range(1, chance.randrange(2, 60))
    }
    live = flying(streams)
    number = chance.choice([None, *streams])
    made = preempt(number, chance.choice("ab"))
    found = [int.from_bytes(one.key[0], "big") for one in ActionContext.of_evaluator(live.evaluator).candidates(made)]
    own = None if number is None else CLASSES.get(streams[number][0]).priority
    ranked = []
    for stream in live.evaluator.live.values():
        other = int.from_bytes(stream.key[0], "big")
        priority = stream.slo.priority
        if stream.instance != made.identity["instance"] or other == number or (own is not None and priority > own):
            continue
        runway_ns = stream.stream.lines().runway.value(AT_NS + stream.offset_ns)
        ranked.append((priority, -runway_ns, other))
    assert found == [other for _, _, other in sorted(ranked)][:MOST_CANDIDATES]


def test_an_order_says_by_which_id_the_engine_knows_the_request() -> None:
    live = flying({1: ("chat", "a", 1)}, {semconv.GEN_AI_REQUEST_ID: "chatcmpl-x"})
    context = ActionContext.of_evaluator(live.evaluator)
    assert context.order(decision(1, action="abort")).request_id == "chatcmpl-x"
    assert context.order(decision(2, action="abort")).request_id is None
    bare = ActionContext.of_evaluator(flying({1: ("chat", "a", 1)}).evaluator)
    assert bare.order(decision(1, action="abort")).request_id is None
