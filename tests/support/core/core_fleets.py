"""Random fleets of streams as a collector receives them, and evaluators that take them in one way or another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from random import Random
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.core.core_spans import as_sent
from support.evaluate.sinks import KeepingSink
from support.otlp import IDENTITY, T0_NS, Value, export, request_span, segment_span, token

from otel_llm import semconv
from otel_llm.evaluate.evaluator import Evaluator
from otel_llm.evaluate.registry import RegistryLimits
from otel_llm.evaluate.timers import Timeouts
from otel_llm.evaluate.windowing import Windowing
from otel_llm.formats.batch import Batch
from otel_llm.formats.otlp.export_request import decode, read
from otel_llm.rules.decisions.decision_records import Decided, Decision
from otel_llm.rules.engine.rule_engine import RuleEngine
from otel_llm.rules.files.ruleset import RuleSet
from otel_llm.slo.classes import Benefit, Curve, Deadline, Fluidity, SloClass, SloClasses

MS = 1_000_000
SECOND = 1_000 * MS
MOST_IN_A_SEGMENT = 100
KIND_WORDS = (None, "reasoning", "tool")


def slo_class(random: Random, name: str) -> SloClass:
    """Draw a class whose thresholds short streams meet and miss."""
    policy = random.choice(("reading", "dslo", "ttft_tbt", "ttft_tpot", "e2e"))
    first = random.choice((0, 300, 1000)) * MS
    following = random.choice((20, 50, 200)) * MS
    return SloClass(
        name=name,
        pace_ns=random.choice((20, 50, 200, 333)) * MS,
        reads=random.choice(((0,), (0,), (0, 1), (0, 1, 2), (0, 2), (1,))),
        start_ns=random.choice((0, 0, 300)) * MS,
        deadline=Deadline(policy, first, None if policy in ("reading", "e2e") else following),  # type: ignore[arg-type]
        fluidity=Fluidity(
            ttft=random.choice((300 * MS, 1000 * MS, Curve(((10, 100 * MS), (100, 900 * MS))))),
            tbt_ns=random.choice((20, 50, 170)) * MS,
            slack_ns=random.choice((0, 0, 40)) * MS,
            ttft_credit=random.choice(("carry", "carry", "drop")),
            count=random.choice(("deadlines", "deadlines", "tokens")),
        ),
        benefit=Benefit(
            alpha=random.choice((0.0, 2.5, 10.0)),
            penalty=random.choice(("linear", "quadratic", "exponential")),
            abort_penalty=random.choice((0.0, 20.0)),
        ),
    )


def slo_classes(random: Random) -> SloClasses:
    """Draw one or two classes, c0 and c1; the first is the default."""
    return SloClasses(tuple(slo_class(random, f"c{at}") for at in range(random.randint(1, 2))), "c0")


@dataclass(frozen=True)
class Delivery:
    """What one export request held, and when it was received (unix ns)."""

    receipt_ns: int
    spans: tuple[Span, ...]

    def batch(self, *, columns: bool) -> Batch:
        """Return its records, plain segments as columns or one by one."""
        message = export(*self.spans)
        batch = read(message.SerializeToString()) if columns else decode(message)
        batch.received(self.receipt_ns)
        return batch


@dataclass(frozen=True)
class Fleet:
    """What happens: who is judged how, and what is received when."""

    classes: SloClasses
    rules: RuleSet
    timeouts: Timeouts
    window_ns: int
    deliveries: tuple[Delivery, ...]

    @property
    def end_ns(self) -> int:
        """Return an instant after which nothing is left to do."""
        last_ns = self.deliveries[-1].receipt_ns if self.deliveries else T0_NS
        return last_ns + self.timeouts.lost_after_ns + 2 * self.timeouts.lateness_ns + 3 * self.window_ns

    def exports(self) -> list[tuple[int, ExportTraceServiceRequest]]:
        """Return the receipt time of each export request (unix ns), and the request."""
        return [(one.receipt_ns, export(*one.spans)) for one in self.deliveries]

    def once(self) -> Fleet:
        """Return the same with nothing sent twice."""
        seen: set[bytes] = set()
        kept = []
        for one in self.deliveries:
            fresh = [span for span in one.spans if not (span.span_id in seen or seen.add(span.span_id))]  # type: ignore[func-returns-value]
            if fresh:
                kept.append(Delivery(one.receipt_ns, tuple(fresh)))
        return replace(self, deliveries=tuple(kept))

    def alone(self) -> Fleet:
        """Return the same with every span in an export request of its own, at the same instants, commits first."""
        single = [
            Delivery(one.receipt_ns, (span,))
            for one in self.deliveries
            for span in sorted(one.spans, key=_commits_first)
        ]
        return replace(self, deliveries=tuple(single))


def _commits_first(span: Span) -> tuple[bool, int]:
    segment = span.name == semconv.SEGMENT_SPAN
    return (not segment, span.attributes[0].value.int_value if segment else 0)


def _token_times(random: Random, commit_ns: int) -> list[tuple[int, int]]:
    """Draw arrivals with their kinds: bursts, an even pace, and stalls."""
    found: list[tuple[int, int]] = []
    at_ns = commit_ns + random.choice((20, 100, 300, 900)) * MS
    kind = random.choice((0, 0, 0, 1, 2))
    for _ in range(random.randint(0, 5)):
        if random.random() < 0.3:
            kind = random.choice((0, 1, 2))
        gap_ns = random.choice((0, 1, 10 * MS, 50 * MS, 125 * MS))
        for _ in range(random.choice((1, 2, 4, 9, 9, 30))):
            found.append((at_ns, kind))
            at_ns += gap_ns
        at_ns += random.choice((0, 50, 250, 300, 700, 1600, 2600)) * MS
    if random.random() < 0.1:
        found += [(at_ns + i * random.choice((0, 3_000)), kind) for i in range(random.choice((120, 260)))]
    return sorted(found)


@dataclass
class _Sender:
    """One stream, and the spans that describe it."""

    random: Random
    request: int
    choice: int
    commit_ns: int
    identity: dict[str, Value]
    spans: list[Span] = field(default_factory=list)
    tokens: int = 0
    end_ns: int = 0

    def write(self, *, own_end: bool, alone: bool) -> None:
        """Cut the stream's time into segments; `own_end`: the last one says how it ended; `alone`: of one choice."""
        random = self.random
        times = _token_times(random, self.commit_ns)
        last_ns = times[-1][0] if times else self.commit_ns
        stop_ns = last_ns + random.choice((0, 3, 400, 2500)) * MS
        self._cut(self.commit_ns, self.commit_ns, [], dict(self.identity))
        start_ns, done = self.commit_ns, 0
        flush_ns = self.commit_ns
        while start_ns < stop_ns:
            flush_ns = min(stop_ns, flush_ns + random.choice((250, 250, 250, 500, 40)) * MS)
            part = [one for one in times[done:] if one[0] <= flush_ns]
            done += len(part)
            while len(part) > MOST_IN_A_SEGMENT:
                head, part = part[:MOST_IN_A_SEGMENT], part[MOST_IN_A_SEGMENT:]
                self._cut(start_ns, head[-1][0], head)
                start_ns = head[-1][0]
            self._cut(start_ns, flush_ns, part)
            start_ns = flush_ns
        self.end_ns = max(stop_ns, last_ns)
        if own_end:
            outcome = random.choice(("completed", "completed", "cancelled", "error", "disconnected", "abandoned"))
            stated: dict[str, Value] = {
                semconv.OUTCOME: outcome,
                semconv.TOKENS: self.tokens,
                semconv.TOKEN_BASIS: random.choice(("exact", "exact", "chunk", "estimated")),
                semconv.SEGMENTS: len(self.spans) + 1,
            }
            if alone and random.random() < 0.5:
                stated |= stated_total(random, self.tokens)
            if random.random() < 0.5:
                stated[semconv.GEN_AI_USAGE_INPUT_TOKENS] = random.choice((5, 50, 500))
            self._cut(self.end_ns, self.end_ns, [], stated)

    def _cut(
        self, start_ns: int, end_ns: int, part: Sequence[tuple[int, int]], stated: dict[str, Value] | None = None
    ) -> None:
        if not part and stated is None and self.random.random() < 0.5:
            stated = {semconv.SEGMENT_LAST_BYTE: end_ns - self.random.choice((0, 1, 40 * MS, 200 * MS))}
        runs = [(one, len(list(same))) for one, same in groupby(part)]
        if self.random.random() < 0.7:
            runs = [(one, 1) for one in part]
        events = [token(at_ns, None if number == 1 else number, KIND_WORDS[kind]) for (at_ns, kind), number in runs]
        span = segment_span(
            len(self.spans),
            self.tokens,
            events,
            request=self.request,
            choice=self.choice,
            start_ns=start_ns,
            end_ns=end_ns,
            attributes=stated,
        )
        self.tokens += len(part)
        self.spans.append(as_sent(span) if self.random.random() < 0.95 else span)


def stated_total(random: Random, recorded: int) -> dict[str, Value]:
    """Draw what a reply states of its tokens, around those that were recorded."""
    total = random.choice((recorded, 3 * recorded, recorded // 3, recorded + 1, 0))
    stated: dict[str, Value] = {semconv.GEN_AI_USAGE_OUTPUT_TOKENS: total}
    if random.random() < 0.5:
        stated[semconv.GEN_AI_USAGE_REASONING_TOKENS] = random.choice((0, 1, total // 2, total + 1))
    return stated


def fleet(random: Random, *, streams: int | None = None, calm: bool = False, spread_s: int = 0) -> Fleet:
    """Draw a fleet; `calm`: nothing is lost or late, who it is is said at once, and no clock is far off.

    `spread_s`: over so many seconds requests are committed, and timeouts is short beside that.
    """
    classes = slo_classes(random)
    wide = random.random() < 0.25
    requests = streams or (random.randint(9, 14) if wide else random.randint(1, 5))
    tick_ns = random.choice((1, 5 * MS, 50 * MS, 250 * MS))
    received: list[tuple[int, Span]] = []
    for request in range(1, requests + 1):
        offset_ns = random.choice((0, 0, 0, -20 * MS, 700 * MS) + (() if calm else (-9 * SECOND, 3600 * SECOND)))
        base_ns = T0_NS + random.choice((0, 0, 13, 250, 1900)) * MS + random.randrange(spread_s + 1) * SECOND
        received += _request(random, request, base_ns, offset_ns, calm=calm)
    by_tick: dict[int, list[Span]] = {}
    for receipt_ns, span in sorted(received, key=lambda one: one[0]):
        by_tick.setdefault(-(-receipt_ns // tick_ns) * tick_ns, []).append(span)
    deliveries = [Delivery(at_ns, tuple(random.sample(spans, len(spans)))) for at_ns, spans in by_tick.items()]
    lateness_ns = 60 * SECOND if calm else random.choice((1, 5, 5)) * SECOND
    if spread_s:
        lateness_ns = (4 if calm else 1) * SECOND
    return Fleet(
        classes=classes,
        rules=RuleSet(()),
        timeouts=Timeouts(lateness_ns, random.choice((10, 120)) * SECOND),
        window_ns=random.choice((1, 3, 10) if not spread_s else (1, 3)) * SECOND,
        deliveries=tuple(deliveries),
    )


def _request(random: Random, request: int, base_ns: int, offset_ns: int, *, calm: bool) -> list[tuple[int, Span]]:
    commit_ns = base_ns + offset_ns
    choices = 1 if random.random() < 0.85 else random.randint(2, 3)
    own_end = random.random() < 0.85
    received: list[tuple[int, Span]] = []
    end_ns = commit_ns
    identity = _identity(random)
    for choice in range(choices):
        begin_ns = commit_ns + (random.choice((0, 0, 400)) * MS if choice else 0)
        reported = identity if calm or random.random() < 0.85 else {}
        sender = _Sender(random, request, choice, begin_ns, reported)
        sender.write(own_end=own_end, alone=choices == 1)
        end_ns = max(end_ns, sender.end_ns)
        received += _sent(random, sender.spans, offset_ns, calm=calm)
    if random.random() < 0.5 or not own_end:
        stated: dict[str, Value] = {**identity}
        if not own_end and random.random() < 0.6:
            stated |= {semconv.OUTCOME: "completed"}
        # If no segment ends a choice, it may be lost before the request span arrives: the prompt is then late data.
        if random.random() < 0.3 and not (calm and choices > 1 and not own_end):
            stated |= {semconv.GEN_AI_USAGE_INPUT_TOKENS: 50}
        if choices == 1 and calm and random.random() < 0.5:
            stated |= {semconv.TOKEN_BASIS: "chunk", **stated_total(random, sender.tokens)}
        if random.random() < 0.2 and not calm:
            stated |= {semconv.SLO_CLASS: "c1", semconv.INSTANCE: "b"}
        stop_ns = random.choice((end_ns, end_ns, commit_ns + 500 * MS))
        span = request_span(request=request, start_ns=commit_ns, end_ns=stop_ns, attributes=stated)
        receipt_ns = stop_ns - offset_ns + random.choice((1, 40, 2000, 5500)[: 3 if calm else 4]) * MS
        received.append((receipt_ns, span))
    return received


def _identity(random: Random) -> dict[str, Value]:
    stated: dict[str, Value] = {**IDENTITY, semconv.GEN_AI_REQUEST_MODEL: random.choice(("m", "n"))}
    if random.random() < 0.6:
        stated[semconv.SLO_CLASS] = random.choice(("c0", "c1", "nobody"))
    if random.random() < 0.6:
        stated[semconv.INSTANCE] = random.choice(("a", "b"))
    if random.random() < 0.5:
        stated[semconv.EXACT_RESUME] = True
    if random.random() < 0.4:
        stated[semconv.GEN_AI_USAGE_INPUT_TOKENS] = random.choice((5, 50, 500))
    return stated


def _sent(random: Random, spans: list[Span], offset_ns: int, *, calm: bool) -> list[tuple[int, Span]]:
    """Return the spans with their receipt times: some late, twice or never."""
    slow_ns = random.choice((1, 20, 60)) * MS
    delays = (0, 0, 0, 0, 5, 80, 700) if calm else (*[0] * 12, 5, 5, 80, 80, 700, 1600, 5300, 8000)
    received = []
    for span in spans:
        if not calm and random.random() < 0.02:
            continue
        for _ in range(2 if random.random() < 0.05 else 1):
            receipt_ns = span.end_time_unix_nano - offset_ns + slow_ns + random.choice(delays) * MS
            received.append((receipt_ns, span))
    return received


@dataclass
class Seen(KeepingSink):
    """An evaluator, and all that comes out of it."""

    fleet: Fleet
    by_columns: bool = True
    known: Iterable[Decided] = ()
    """Decisions that stand in the file already."""
    limits: RegistryLimits | None = None
    windows: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        fleet = self.fleet
        self.windowing = Windowing(fleet.window_ns, fleet.timeouts.lateness_ns, self.windows.append)
        self.evaluator = Evaluator(
            fleet.classes,
            RuleEngine(fleet.rules, frozenset(self.known)),
            self.windowing,
            self,
            fleet.timeouts,
            self.limits,
            by_columns=self.by_columns,
        )

    def take(self, delivery: Delivery, *, columns: bool = True) -> None:
        """Take one export request."""
        self.evaluator.apply(delivery.batch(columns=columns), delivery.receipt_ns)

    def run(self, *, columns: bool = True, advances: Iterable[int] = (), scrape: bool = False) -> Seen:
        """Take all deliveries, with looks at the clock at other instants between, then let all time pass."""
        waiting = sorted(advances)
        for delivery in self.fleet.deliveries:
            while waiting and waiting[0] < delivery.receipt_ns:
                self.evaluator.advance(waiting.pop(0))
            self.take(delivery, columns=columns)
            if scrape:
                self.metered += self.evaluator.meter.charge_in_flight()
        for instant in waiting:
            self.evaluator.advance(instant)
        return self.rest()

    def rest(self) -> Seen:
        """Let time pass until nothing is left to do."""
        self.evaluator.advance(self.fleet.end_ns)
        return self

    def story(self) -> list[Decision]:
        """Return the decisions in order of time, those of one instant by stream."""
        return sorted(self.decisions, key=lambda one: (one.now_ns, one.stream))

    def totals(self) -> dict[Any, tuple[int, int, float, float]]:
        """Return what the counters of each group come to; the tokens of penalties to a millionth."""
        found: dict[Any, list[float]] = {}
        for one in self.metered:
            total = found.setdefault(one.group, [0, 0, 0.0, 0.0])
            for at, value in enumerate(one[1:]):
                assert value >= 0, one
                total[at] += value
        return {
            group: (int(total[0]), int(total[1]), float(f"{total[2]:.9e}"), float(f"{total[3]:.9e}"))
            for group, total in found.items()
            if any(total)
        }

    def counts(self) -> Counter[str]:
        """Return the counters that no grouping of what is received may change."""
        return Counter({name: number for name, number in self.evaluator.counts.items() if number})


def advances(random: Random, fleet: Fleet, number: int = 40) -> list[int]:
    """Draw instants at which somebody looks at the clock."""
    if not fleet.deliveries:
        return []
    first, last = fleet.deliveries[0].receipt_ns, fleet.deliveries[-1].receipt_ns
    return [random.randrange(first, last + 12 * SECOND) for _ in range(number)]
