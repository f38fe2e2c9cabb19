"""Streams from scripts for the tests of the engine: what is sent when, what arrives when, and one driver for all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

from otel_llm.formats.records import StreamKey
from otel_llm.rules.decisions.decision_records import Decided, Decision
from otel_llm.rules.engine.rule_engine import RuleEngine
from otel_llm.rules.files.load import load_rules
from otel_llm.rules.files.ruleset import RuleSet
from otel_llm.slo.classes import SloClass
from otel_llm.slo.stream import Stream

MS = 1_000_000
S = 1_000_000_000
COMMIT = 1_700_000_000 * S
"""The streams' clock reads this at the commit; the collector's clock is another one and reads the receipt times."""


def key(number: int = 1, choice: int = 0) -> StreamKey:
    return number.to_bytes(16, "big"), number.to_bytes(8, "big"), "default", choice


@dataclass(slots=True)
class View:
    """A stream as the evaluator shows it to the engine."""

    stream: Stream
    key: StreamKey = field(default_factory=key)
    slo_class: str = "chat"
    model: str = "m"
    instance: str = "a"
    measured_at: str = "client"
    exact_resume: bool = False
    token_basis: str | None = None
    token_ratio_learned: bool | None = None
    last_byte_ns: int = 0
    counted_since_ns: int | None = None
    watermark_ns: int = COMMIT
    has_gap: bool = False
    ageless: bool = False
    offset_ns: int = -(10**30)


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment: tokens with their times, its end and its receipt in ns, on the stream's and the collector's axis."""

    receipt_ns: int
    seq: int
    end_ns: int
    tokens_ns: tuple[int, ...] = ()
    kinds: tuple[int, ...] | None = None
    key: StreamKey = field(default_factory=key)
    last_byte_ns: int = 0
    last: bool = False
    late: bool = False


@dataclass
class Receiver:
    """Applies segments in order of seq, as the evaluator does, and keeps the views."""

    slo: SloClass = field(default_factory=SloClass)
    views: dict[StreamKey, View] = field(default_factory=dict)
    identity: dict[StreamKey, dict[str, object]] = field(default_factory=dict)
    waiting: dict[StreamKey, dict[int, Segment]] = field(default_factory=dict)
    following: dict[StreamKey, int] = field(default_factory=dict)

    def apply(self, segment: Segment) -> tuple[View, bool]:
        """Return the view, and whether the stream has ended."""
        view = self.views.get(segment.key)
        if view is None:
            view = View(Stream(self.slo, COMMIT), segment.key, **self.identity.get(segment.key, {}))  # type: ignore[arg-type]
            self.views[segment.key] = view
        view.offset_ns = max(view.offset_ns, segment.end_ns - segment.receipt_ns)
        waiting = self.waiting.setdefault(segment.key, {})
        waiting[segment.seq] = segment
        ended = False
        while (following := waiting.pop(self.following.get(segment.key, 0), None)) is not None:
            view.stream.extend(following.tokens_ns, following.kinds)
            view.watermark_ns = following.end_ns
            view.last_byte_ns = max(view.last_byte_ns, following.last_byte_ns)
            self.following[segment.key] = following.seq + 1
            ended = following.last
        view.has_gap = bool(waiting)
        return view, ended


def run(
    rules: RuleSet,
    segments: Iterable[Segment],
    until_ns: int,
    *,
    slo: SloClass | None = None,
    batches: Sequence[int] = (),
    wake: bool = True,
    decided: Iterable[Decided] = (),
    identity: dict[StreamKey, dict[str, object]] | None = None,
) -> list[Decision]:
    """Drive an engine over segments in order of receipt, batch by batch, and on to `until_ns`.

    `batches`: sizes into which records of one receipt time are cut (each batch is applied whole); `wake`: whether the
    engine is also woken between receipts, as its timer asks.
    """
    engine = RuleEngine(rules, frozenset(decided))
    receiver = Receiver(slo or SloClass(), identity=identity or {})
    decisions: list[Decision] = []
    for receipt_ns, group in groupby(sorted(segments, key=lambda one: one.receipt_ns), lambda one: one.receipt_ns):
        if wake:
            while (timer_ns := engine.next_timer()) is not None and timer_ns < receipt_ns:
                decisions += engine.advance(timer_ns, receiver.views)
        decisions += engine.advance(receipt_ns - 1, receiver.views)
        for batch in cut(list(group), batches):
            changed: dict[StreamKey, tuple[View, bool, bool]] = {}
            for segment in batch:
                view, ended = receiver.apply(segment)
                changed[segment.key] = view, ended, segment.late
            for view, ended, late in changed.values():
                if ended:
                    decisions += engine.ended(view, view.watermark_ns, receipt_ns)
                    del receiver.views[view.key]
                else:
                    engine.update(view, receipt_ns, late=late)
        decisions += engine.advance(receipt_ns, receiver.views)
    if wake:
        while (timer_ns := engine.next_timer()) is not None and timer_ns < until_ns:
            decisions += engine.advance(timer_ns, receiver.views)
    return decisions + engine.advance(until_ns, receiver.views)


def cut(records: list[Segment], sizes: Sequence[int]) -> list[list[Segment]]:
    batches = []
    for size in sizes:
        batches.append(records[:size])
        records = records[size:]
    return [batch for batch in (*batches, records) if batch]


def flushed(
    tokens_ms: Iterable[int],
    flushes_ms: Iterable[int],
    *,
    delay_ms: int = 20,
    delays_ms: dict[int, int] | None = None,
    stream: StreamKey | None = None,
    end_ms: int | None = None,
    clock_ms: int = 0,
) -> list[Segment]:
    """Cut tokens (ms since the commit) into the segments that flushes at these instants make.

    `delays_ms`: the delay of single segments by seq; `clock_ms`: by how much the collector's clock is ahead.
    """
    tokens = sorted(tokens_ms)
    ends = [0, *sorted(flushes_ms)] + ([] if end_ms is None else [end_ms])
    segments = []
    for seq, end in enumerate(ends):
        begin = -1 if seq == 0 else ends[seq - 1]
        inside = tuple(COMMIT + token * MS for token in tokens if begin < token <= end)
        receipt = end + (delays_ms or {}).get(seq, delay_ms) + clock_ms
        last = end_ms is not None and seq == len(ends) - 1
        segments.append(Segment(receipt * MS, seq, COMMIT + end * MS, inside, key=stream or key(), last=last))
    return segments


def ruleset(text: str, executors: Iterable[str] = ()) -> RuleSet:
    """Load rules from the text of a file; `executors`: verbs that may be enforced."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "rules.yaml"
        file.write_text(text)
        return load_rules([file], frozenset(executors))


def one_rule(when: str, **settings: str) -> RuleSet:
    """Load one rule of scope stream that alerts, `for_` for the key `for`."""
    lines = [f"    {name.rstrip('_')}: {value}" for name, value in settings.items() if name != "actions"]
    actions = settings.get("actions", "[{alert: {name: A}}]")
    return ruleset(
        "\n".join(
            [
                "version: 1",
                "groups:",
                "- name: g",
                "  scope: stream",
                "  rules:",
                "  - rule: R",
                f"    when: {when!r}",
                *lines,
                f"    actions: {actions}",
                "",
            ]
        )
    )


def story(decisions: Iterable[Decision]) -> list[tuple[str, str, float]]:
    """Tell decisions in short: the rule's state, the outcome, the flip in ms since the commit."""
    return [(one.state, one.outcome, (one.flip_ns - COMMIT) / MS) for one in decisions]
