"""Small stories for the evaluator, told in ms since T0: segments, batches, instants, and what was decided."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain, repeat

from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.core.core_fleets import Delivery, Fleet, Seen
from support.core.core_spans import sent_segment
from support.otlp import IDENTITY, T0_NS, Value, request_span, token

from otel_llm import semconv
from otel_llm.evaluate.registry import RegistryLimits
from otel_llm.evaluate.timers import Timeouts
from otel_llm.rules.files.ruleset import RuleSet
from otel_llm.rules.files.slo_file import load_slo
from otel_llm.slo.classes import SloClasses

MS = 1_000_000
SECOND = 1_000 * MS
Story = list[tuple[str, int, str, str, float, float]]


def at(ms: float) -> int:
    """Return an instant."""
    return T0_NS + round(ms * MS)


def commit(ms: float = 0, *, request: int = 1, choice: int = 0, stated: Mapping[str, Value] = IDENTITY) -> Span:
    """Return segment 0."""
    return sent_segment(0, 0, request=request, choice=choice, start_ns=at(ms), attributes=stated)


def segment(
    seq: int,
    first: int,
    tokens: Iterable[float],
    end: float,
    *,
    request: int = 1,
    choice: int = 0,
    kind: str | None = None,
    counts: Iterable[int] = (),
    stated: Mapping[str, Value] | None = None,
) -> Span:
    """Return a segment with these token events, up to `end`; `counts`: of the first ones, else one each."""
    numbers = chain(counts, repeat(1))
    events = [token(at(ms), None if (count := next(numbers)) == 1 else count, kind) for ms in tokens]
    return sent_segment(
        seq, first, events, request=request, choice=choice, start_ns=T0_NS, end_ns=at(end), attributes=stated
    )


def ends(tokens: int, segments: int, outcome: str = "completed") -> dict[str, Value]:
    """Return what a last segment says."""
    return {semconv.OUTCOME: outcome, semconv.TOKENS: tokens, semconv.SEGMENTS: segments}


def request(ms: float, *, number: int = 1, start: float = 0, stated: Mapping[str, Value] = IDENTITY) -> Span:
    """Return a request span that ends at `ms`."""
    return request_span(request=number, start_ns=at(start), end_ns=at(ms), attributes=stated)


def seen(
    rules: RuleSet | None = None,
    *,
    by_columns: bool = True,
    classes: SloClasses | None = None,
    timeouts: Timeouts | None = None,
    window_ns: int = 10 * SECOND,
    limits: RegistryLimits | None = None,
) -> Seen:
    """Return an evaluator that has seen nothing yet."""
    known = load_slo() if classes is None else classes
    drawn = Fleet(known, rules or RuleSet(()), timeouts or Timeouts(), window_ns, ())
    return Seen(drawn, by_columns=by_columns, limits=limits)


def take(one: Seen, ms: float, *spans: Span, columns: bool = True) -> None:
    """Let an evaluator receive an export request."""
    one.take(Delivery(at(ms), spans), columns=columns)


def story(one: Seen) -> Story:
    """Tell the decisions: rule, request, state, outcome, flip and when it was decided (ms since T0)."""
    return [
        (
            decision.rule,
            int(decision.subject[0][-1]),
            decision.state,
            decision.outcome,
            (decision.flip_ns - T0_NS) / MS,
            (decision.now_ns - T0_NS) / MS,
        )
        for decision in one.decisions
    ]
