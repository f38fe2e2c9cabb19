"""Run one test: the collector's own evaluator on virtual time, and its state at each instant."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from otel_llm.actions.alerts.firing import Firing
from otel_llm.backtest.cases.sender import T0_NS, exports, stream_key
from otel_llm.evaluate.evaluator import Evaluator
from otel_llm.evaluate.intake import read_export
from otel_llm.evaluate.timers import Timeouts
from otel_llm.evaluate.windowing import Windowing
from otel_llm.formats.spans.attributes import IntakeLimits
from otel_llm.rules.engine.rule_engine import RuleEngine
from otel_llm.rules.language.condition import read_facts
from otel_llm.rules.language.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from otel_llm.actions.alerts.firing import Alert
    from otel_llm.backtest.cases.case_parser import RuleTest, TestFile
    from otel_llm.evaluate.streams.final_verdict import EndedStream
    from otel_llm.evaluate.streams.stream_in_flight import StreamInFlight
    from otel_llm.evaluate.usage import Metered
    from otel_llm.formats.rows import Row
    from otel_llm.rules.decisions.decision_records import Decision, Labels, Subject
    from otel_llm.rules.language.tokens import Value
    from otel_llm.slo.stated_total import StatedReply

    Progress = Callable[[float], None]

WINDOW_NS = 10_000_000_000
"""The default of `collect`; no rule sees these windows."""
TOLD_EVERY = 100
"""The number of exports between two calls of `progress`."""
_FOR_EVER_NS = 10**18


@dataclass(frozen=True, slots=True)
class Standing:
    """A subject of a waiting or firing rule, and since when: ns since the test's start, on the stream's own clock."""

    about: str | Labels
    since_ns: int


@dataclass(slots=True)
class Stage:
    """An evaluator on a clock that begins at 0; `play` takes it from expectation to expectation.

    `decisions`: all decisions so far, in order.
    """

    file: TestFile
    test: RuleTest
    decisions: list[Decision] = field(default_factory=list)
    evaluator: Evaluator = field(init=False)
    _ids: dict[Subject, str] = field(init=False)
    _now_ns: int = T0_NS
    _firing: dict[tuple[str, Subject], int] = field(default_factory=dict)
    _alerts: Firing = field(default_factory=lambda: Firing(settle_ns=0, keep_ns=_FOR_EVER_NS))

    def __post_init__(self) -> None:
        file = self.file
        self._ids = {stream_key(one): one.id for one in self.test.scripts}
        self.evaluator = Evaluator(
            file.classes,
            RuleEngine(file.rules),
            Windowing(WINDOW_NS, file.lateness_ns),
            self,
            Timeouts(file.lateness_ns, file.lost_after_ns),
        )

    def play(self, instants: Iterable[int], progress: Progress | None = None) -> Iterator[int]:
        """Stop at each of these instants (ns since the start, in order), everything of that instant included.

        `progress` gets the share of the exports that were applied, at intervals.
        """
        stops = list(instants)
        waiting = exports(self.test.scripts, max(stops, default=0))
        at = 0
        for stop_ns in stops:
            while at < len(waiting) and waiting[at].receipt_ns <= T0_NS + stop_ns:
                batch = read_export(waiting[at].raw, waiting[at].receipt_ns, IntakeLimits())
                self.evaluator.apply(batch, waiting[at].receipt_ns)
                at += 1
                if progress is not None and not at % TOLD_EVERY:
                    progress(at / len(waiting))
            self._now_ns = T0_NS + stop_ns
            self.evaluator.advance(self._now_ns)
            yield stop_ns

    def firing(self, rule: str) -> list[Standing]:
        """Return the subjects for which a rule fires."""
        return [Standing(self.name(about), at - T0_NS) for (name, about), at in self._firing.items() if name == rule]

    def pending(self, rule: str) -> list[Standing]:
        """Return the subjects for which a rule waits for its `for`, since when its condition has held."""
        found: list[tuple[Subject, int]] = [*self.evaluator.rules.pending(rule)]
        found += self.evaluator.groups.engine.pending(rule)
        return [Standing(self.name(about), at - T0_NS) for about, at in found]

    def alerts(self, name: str) -> list[Alert]:
        """Return the firing alerts of a name, distinguished by their labels."""
        self._alerts.poll(self._now_ns)
        return [one for one in self._alerts.alerts() if one.members and ("alertname", name) in one.key]

    def actions(self, rule: str) -> dict[str, Counter[str]]:
        """Count the actions of a rule so far by verb, and by whether `budget` or `only_if` stopped them."""
        found: dict[str, Counter[str]] = {}
        for one in self.decisions:
            if one.rule == rule and one.action is not None:
                word = one.outcome if one.outcome in ("budget", "only_if") else "decided"
                found.setdefault(one.action, Counter())[word] += 1
        return found

    def ends(self, rule: str) -> Counter[str]:
        """Count the ends of a rule's firings so far."""
        return Counter(one.outcome for one in self.decisions if one.rule == rule and one.action is None)

    def facts(self, stream: str, names: Iterable[str]) -> dict[str, Value | None] | None:
        """Return facts of a stream now, as its rules see them but of any age; None if it is not in flight."""
        key = next(key for key, name in self._ids.items() if name == stream)
        live = next((one for one in self.evaluator.live.values() if one.key == key), None)
        if live is None or not live.begun or live.ended_ns is not None:
            return None
        snapshot = Snapshot(live)
        x_ns = max(self._now_ns + live.offset_ns, snapshot.stream.last_ns)
        return read_facts(names, snapshot, x_ns, None)

    def name(self, about: Subject) -> str | Labels:
        """Return a stream's id, or labels without those that have no value."""
        known = self._ids.get(about)
        if known is not None:
            return known
        return tuple((str(label), str(value)) for label, value in about if value)  # type: ignore[misc, str-unpack]

    # The evaluator's sink.

    def decided(self, decisions: list[Decision]) -> None:
        """Keep decisions, and the firings by them."""
        self.decisions += decisions
        for one in decisions:
            self._alerts.take(one)
            if one.state == "firing":
                self._firing[one.rule, one.subject] = one.flip_ns
            else:
                self._firing.pop((one.rule, one.subject), None)

    def charged(self, metered: Metered) -> None:
        """Ignore: the counters are a service's."""

    def streams_judged(self, ended: Sequence[EndedStream[StreamInFlight]]) -> None:
        """Ignore: the rows of verdicts are a service's."""

    def reply_stated(self, reply: StatedReply) -> None:
        """Ignore: the counters are a service's."""

    def foreign_judged(self, row: Row) -> None:
        """Ignore: the rows of foreign spans are a service's."""
