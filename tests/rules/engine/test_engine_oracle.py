"""The engine against brute force: a state machine written from the rules page that looks at every instant.

Everything in these scripts happens at whole milliseconds, so facts cross thresholds at a millisecond or, if the
comparison is strict, a nanosecond later: an oracle that looks at both sees all, and must agree to the nanosecond.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import groupby

from hypothesis import given, settings
from hypothesis import strategies as st
from rules.scripted import COMMIT, MS, Receiver, Segment, View, one_rule, run, story
from support.examples import examples

from otel_llm.rules.files.ruleset import Rule, RuleSet
from otel_llm.rules.language.condition import Condition
from otel_llm.rules.language.snapshot import COUNTING
from otel_llm.slo.classes import SloClass
from otel_llm.slo.stream import Stream

CONDITIONS = [
    "gap_seconds > 0.3",
    "gap_seconds >= 0.3",
    "runway_seconds < 0.2",
    "0.2 > runway_seconds && gap_seconds > 0.3",
    "idle_seconds > 0.5 || gap_seconds > 0.4",
    "!(gap_seconds <= 0.2) && tokens_read > 2",
    "tokens > 5 && runway_seconds >= 0.25",
    "ttft_seconds > 0.4 && gap_seconds > 0.1",
    "gap_seconds > ttft_seconds",
    "fact_age_seconds > 0.4",
    "exact_resume == (gap_seconds > 0.25)",
    "gap_seconds in [0.25, 0.5] || gap_seconds == 0.125",
    "rate_tokens_per_second < 5.0 && gap_seconds > 0.1",
    "tokens > 3",
    "tokens > 0 && gap_seconds < 0.1",
    "age_seconds > 1.0 && age_seconds < 1.5",
    "silence_seconds > 0.3",
    "silence_seconds < 0.2",
    "silence_seconds >= 0.25 && gap_seconds > 0.3",
    "gap_seconds > 0.4 && !(silence_seconds > 0.2)",
]
SLANTED = [
    "idle_decode_seconds * 2.0 > 0.5 + gap_seconds",
    "idle_seconds - runway_seconds > 0.3",
    "age_seconds - 0.252 > runway_seconds * 3.0",
    "silence_seconds * 2.0 < 0.5 && gap_seconds > 0.3",
    "-silence_seconds > -0.3 && gap_seconds > 0.3",
    "-(gap_seconds / 3.0) < -0.1 && (2.0 * age_seconds - gap_seconds) / 4.0 > 0.3",
]
"""Sums and products whose slopes are 1, 2 and 4: they cross at whole milliseconds if all happens at every fourth."""
RESOLVES = [None, None, "runway_seconds > 0.4", "gap_seconds < 0.1", "idle_decode_seconds > 0.5", "tokens > 6"]


@dataclass
class Oracle:
    """One rule on one stream, looked at at every instant that is asked for, by what is known then."""

    rule: Rule
    slo: SloClass = field(default_factory=SloClass)
    state: str = "inactive"
    judged: tuple[bool, int] | None = None  # what `when` was taken for at the last look, and since when
    was_missing: bool = False
    floor: int = COMMIT
    policy: int = 0  # up to here `on_missing` has judged
    flip: int = 0
    assumed: tuple[int, int] | None = None
    byte: int = 0
    reported: list[tuple[str, str, float]] = field(default_factory=list)
    parts: dict[int, Stream] = field(default_factory=dict)

    def facts(self, view: View, x: int, byte: int) -> dict[str, object]:
        """Return every fact at an instant, from a stream of the tokens, and the newest byte, that had come by then."""
        count = bisect_right(view.stream.times_ns, x)
        part = self.parts.get(count)
        if part is None:
            part = self.parts[count] = Stream(self.slo, COMMIT)
            part.extend(list(view.stream.times_ns[:count]))
        now = part.at(x)
        return {
            "tokens": now.tokens,
            "tokens_read": now.tokens_read,
            "age_seconds": now.age_ns / 1e9,
            "ttft_seconds": None if now.ttft_ns is None else now.ttft_ns / 1e9,
            "gap_seconds": now.gap_ns / 1e9,
            "silence_seconds": None if x < byte else min(now.gap_ns, x - byte) / 1e9,
            "idle_seconds": now.idle_ns / 1e9,
            "idle_decode_seconds": now.idle_decode_ns / 1e9,
            "runway_seconds": now.runway_ns / 1e9,
            "rate_tokens_per_second": now.rate_tokens_per_second,
            "fact_age_seconds": (x - view.watermark_ns) / 1e9,
            "exact_resume": view.exact_resume,
            "token_basis": view.token_basis if count else None,
            "token_ratio_learned": view.token_ratio_learned if count else None,
        }

    def truth(self, condition: Condition, view: View, x: int, *, aged: bool, byte: int | None = None) -> bool | None:
        names = condition.facts
        identity = {"fact_age_seconds", "exact_resume", *COUNTING}
        timed = set(names) - identity - {"tokens", "tokens_read"}
        if timed and view.has_gap:
            return None
        if aged and set(names) - identity and x - view.watermark_ns > self.rule.max_fact_age_ns:
            return None
        facts = self.facts(view, x, view.last_byte_ns if byte is None else byte)
        values = [facts[name] for name in names]
        return None if None in values else bool(condition.program.run(*values))

    def since(self, condition: Condition, view: View, x: int, value: bool, floor: int) -> int:
        """Step back, a look at a time, to where the run that goes on at x began."""
        start = back = x
        while back > floor:
            back = max(floor, (back - 1) // MS * MS + (1 if back % MS != 1 else 0))
            truth = self.truth(condition, view, back, aged=False)
            if truth is (not value):
                break
            start = back if truth is value else start
        return start

    def evaluation(self, view: View, x: int, *, received: bool) -> None:
        rule = self.rule
        self.look_back(view)
        if view.last_byte_ns > self.byte:
            self.byte = view.last_byte_ns
            if "silence_seconds" in rule.facts and self.judged is not None:
                self.policy = max(self.policy, self.byte)  # of the bytes before it nothing is known any more
        truth = self.truth(rule.when, view, x, aged=True)
        if truth is None and rule.on_missing == "hold":
            return
        holds = rule.on_missing == "fire" if truth is None else truth
        if not holds and self.state != "firing":
            self.state, self.judged, self.was_missing = "inactive", None, truth is None
            return
        judged = self.judged[1] if self.judged and self.judged[0] is holds else None
        if truth is None:
            stale = view.watermark_ns + rule.max_fact_age_ns + 1
            went = stale if rule.when.ages and self.floor <= stale <= x else x
            since = went if judged is None else judged
            self.policy = x
        elif self.was_missing:
            since = x if judged is None else min(judged, self.since(rule.when, view, x, holds, self.floor))
            self.policy = x
        elif judged is not None and not received:
            since = judged  # one look after another with nothing received in between: the run goes on
        else:
            completed = judged is not None and judged <= self.policy
            since = self.since(rule.when, view, x, holds, max(self.floor, self.policy) if completed else self.floor)
            since = judged if judged is not None and completed and since <= self.policy else since
        self.was_missing = truth is None
        self.judged = (holds, since)
        if holds and self.state != "firing":
            self.state = "pending"
            if x >= since + rule.for_ns:
                self.state, self.flip = "firing", since + rule.for_ns
                self.floor = self.flip
                completed = truth is None or view.watermark_ns >= self.flip
                self.assumed = None if completed else self.known(view)
                self.reported.append(("firing", "done", (self.flip - COMMIT) / MS))
        elif not holds and x >= since + rule.keep_firing_for_ns:
            at = since + rule.keep_firing_for_ns
            if rule.resolve_when is None:
                self.close("resolved", at)
            elif self.truth(rule.resolve_when, view, x, aged=True):
                self.close("resolved", max(at, self.since(rule.resolve_when, view, x, True, self.floor)))

    def look_back(self, view: View) -> None:
        """Refute a firing if, by what is known now, `when` did not hold at the flip."""
        if self.state != "firing" or self.assumed is None:
            return
        known = self.known(view)
        truth: bool | None = True
        if known != self.assumed:
            truth = self.truth(self.rule.when, view, self.flip, aged=False, byte=known[1])
        if truth is False:
            self.close("refuted", self.flip)
        elif truth is not None:
            self.assumed = None if view.watermark_ns >= self.flip else known

    def known(self, view: View) -> tuple[int, int]:
        """Return what is known of the time up to the flip: its tokens, and the newest byte that was known of it."""
        byte = view.last_byte_ns
        if byte > self.flip:
            byte = 0 if self.assumed is None else self.assumed[1]
        return bisect_right(view.stream.times_ns, self.flip), byte

    def close(self, outcome: str, at: int) -> None:
        self.reported.append(("resolved", outcome, (at - COMMIT) / MS))
        self.floor = max(self.floor, at)
        self.state, self.judged, self.assumed = "inactive", None, None


def watch(rules: RuleSet, segments: list[Segment], until_ns: int) -> list[tuple[str, str, float]]:
    """Run the oracle: at every receipt after the batch, and at every millisecond and the nanosecond after it."""
    oracle = Oracle(rules.rules[0])
    receiver = Receiver()
    receipts = {
        at: list(group) for at, group in groupby(sorted(segments, key=lambda s: s.receipt_ns), lambda s: s.receipt_ns)
    }
    view: View | None = None
    for tick in range(min(receipts), until_ns + 1, MS):
        for segment in receipts.get(tick, ()):
            view, ended = receiver.apply(segment)
            oracle.parts = {}
            if ended:
                oracle.look_back(view)
                if oracle.state == "firing":
                    oracle.close("ended", max(view.watermark_ns, view.stream.last_ns, oracle.flip))
                return oracle.reported
        if view is not None:
            for at in (tick, tick + 1):
                if at <= until_ns:
                    oracle.evaluation(view, at + view.offset_ns, received=tick in receipts and at == tick)
    return oracle.reported


@st.composite
def scripts(draw: st.DrawFn, grid_ms: int = 1) -> list[Segment]:
    """Draw a reply of bursts and stalls, its segments, their delays and order of arrival, all at steps of a grid."""

    def step(*choices: int) -> int:
        return -(-draw(st.sampled_from(choices)) // grid_ms) * grid_ms

    times, at = [], -(-draw(st.integers(0, 500)) // grid_ms) * grid_ms
    for _ in range(draw(st.integers(0, 5))):
        for _ in range(draw(st.integers(1, 4))):
            times.append(at)
            at += step(0, 1, 10, 50, 125, 200)
        at += step(0, 100, 250, 300, 301, 700)
    segments, begin, end, seq = [], -1, 0, 0
    stop = at + step(0, 100, 600)
    while True:
        last = end >= stop
        receipt = 1000 + end + step(0, 0, 1, 20, 20, 80, 300)
        inside = tuple(COMMIT + time * MS for time in times if begin < time <= end)
        byte_ms = 0 if inside else step(0, 0, 1, 20, 100, 300)  # a segment without tokens may state an earlier byte
        byte_ns = COMMIT + (end - byte_ms) * MS if byte_ms and byte_ms <= end else 0
        ends = last and draw(st.booleans())
        segments.append(Segment(receipt * MS, seq, COMMIT + end * MS, inside, last_byte_ns=byte_ns, last=ends))
        if last:
            return segments
        begin, seq = end, seq + 1
        end = min(stop, end + step(50, 100, 250, 250, 400))


durations = st.sampled_from(["0s", "50ms", "100ms", "300ms"])


@st.composite
def rules_drawn(draw: st.DrawFn, conditions: list[str]) -> RuleSet:
    resolve = draw(st.sampled_from(RESOLVES))
    return one_rule(
        draw(st.sampled_from(conditions)),
        **({} if resolve is None else {"resolve_when": repr(resolve)}),
        for_=draw(durations),
        keep_firing_for=draw(durations),
        on_missing=draw(st.sampled_from(["hold", "hold", "false", "fire"])),
        max_fact_age=draw(st.sampled_from(["152ms", "352ms", "1500ms"])),
    )


def agree(rules: RuleSet, segments: list[Segment]) -> None:
    until_ns = max(segment.receipt_ns for segment in segments) + 500 * MS
    assert story(run(rules, segments, until_ns)) == watch(rules, segments, until_ns)


@given(rules_drawn(CONDITIONS), scripts())
@settings(max_examples=examples(60))
def test_the_engine_sees_what_brute_force_sees(rules: RuleSet, segments: list[Segment]) -> None:
    agree(rules, segments)


@given(rules_drawn(SLANTED), scripts(grid_ms=4))
@settings(max_examples=examples(40))
def test_sums_and_products_cross_where_brute_force_sees_it(rules: RuleSet, segments: list[Segment]) -> None:
    agree(rules, segments)
