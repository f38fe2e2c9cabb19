"""One stream that the relay sees at first hand, and an executor of its migrations, for the tests of what is refuted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rules.scripted import COMMIT, MS, View, key

from otel_llm.rules.decisions.decision_records import Decision
from otel_llm.rules.engine.rule_engine import RuleEngine
from otel_llm.rules.files.ruleset import RuleSet
from otel_llm.slo.classes import SloClass
from otel_llm.slo.stream import Stream

RULES = """
version: 1
groups:
- name: g
  scope: stream
  rules:
  - rule: R
    when: {when!r}
    {more}
    actions:
    - migrate: {{to: least_load, only_if: 'exact_resume'}}
      mode: enforce
      budget: {{{budget}}}
    - alert: {{name: A}}
"""


@dataclass
class FirstHand:
    """Drive an engine by the tokens of one stream, with no lateness; instants in ms since the commit.

    `executes` says, of a try (counted from 0), after how many ms it is refuted, None for one that is not. `early`:
    whether a refutation that comes with a token is reported before the token.
    """

    rules: RuleSet
    executes: Callable[[int], int | None]
    early: bool = False
    decisions: list[Decision] = field(default_factory=list)
    refuted: list[tuple[Decision, int]] = field(default_factory=list)
    """The tries that were refuted, and when, in ms."""
    view: View = field(
        default_factory=lambda: View(
            Stream(SloClass(), COMMIT), key(), exact_resume=True, measured_at="relay", offset_ns=0
        )
    )
    tries: int = 0

    def __post_init__(self) -> None:
        self.engine = RuleEngine(self.rules)
        self._to_refute: list[tuple[int, Decision]] = []

    def run(self, tokens_ms: Sequence[int], end_ms: int) -> list[Decision]:
        """Return all decisions from the commit to the end of the stream."""
        self.move(0, token=False)
        for at_ms in tokens_ms:
            self.wait(at_ms)
            self.move(at_ms, token=True)
        self.wait(end_ms)
        self._advance(end_ms, before=True)
        self.decisions += self.engine.ended(self.view, self.at(end_ms), self.at(end_ms))
        return self.decisions

    def wait(self, until_ms: int) -> None:
        """Do all that is due before an instant; the telemetry of a stream at first hand does not grow old."""
        for tick_ms in range(self._now_ms() + 1, until_ms):
            if tick_ms % 500 == 0:
                self.move(tick_ms, token=False)
            if any(at_ms == tick_ms for at_ms, _ in self._to_refute):
                self._advance(tick_ms)
                self._refute(tick_ms)
                self._advance(tick_ms)

    def move(self, at_ms: int, *, token: bool) -> None:
        """Note a token, or that the stream is still there."""
        self._advance(at_ms, before=True)
        if self.early:
            self._refute(at_ms)
        if token:
            self.view.stream.extend((self.at(at_ms),))
        self.view.watermark_ns = self.at(at_ms)
        self.engine.update(self.view, self.at(at_ms))
        self._advance(at_ms)
        self._refute(at_ms)
        self._advance(at_ms)

    def at(self, at_ms: int) -> int:
        return COMMIT + at_ms * MS

    def _now_ms(self) -> int:
        return (self.view.watermark_ns - COMMIT) // MS

    def _advance(self, at_ms: int, *, before: bool = False) -> None:
        found = self.engine.advance(self.at(at_ms) - before, {self.view.key: self.view})
        self.decisions += found
        for one in found:
            if one.action == "migrate" and one.outcome == "unconfirmed":
                delay_ms = self.executes(self.tries)
                self.tries += 1
                if delay_ms is not None:
                    decided_ms = -((COMMIT - one.now_ns) // MS)  # the next whole one
                    self._to_refute.append((max(at_ms, decided_ms + delay_ms), one))

    def _refute(self, at_ms: int) -> None:
        for due_ms, one in [each for each in self._to_refute if each[0] <= at_ms]:
            self._to_refute.remove((due_ms, one))
            if self.engine.refuted(one, self.at(at_ms)):
                self.refuted.append((one, at_ms))
            assert not self.engine.refuted(one, self.at(at_ms)), "a second time it changes nothing"


def migrations(decisions: Sequence[Decision]) -> list[tuple[float, str]]:
    """Return the flip of each decision to migrate in ms, and its outcome."""
    return [((one.flip_ns - COMMIT) / MS, one.outcome) for one in decisions if one.action == "migrate"]
