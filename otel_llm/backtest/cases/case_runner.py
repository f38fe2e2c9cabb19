"""Run the tests of a file for `otel-llm rules test`, and describe each result."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from otel_llm.backtest.cases.sender import T0_NS
from otel_llm.backtest.cases.stage import Stage
from otel_llm.rules.language.facts import FACTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from otel_llm.backtest.cases.case_parser import Expectation, RuleTest, TestFile
    from otel_llm.backtest.cases.case_schema import Subject
    from otel_llm.backtest.cases.stage import Progress, Standing
    from otel_llm.rules.decisions.decision_records import Decision
    from otel_llm.rules.language.tokens import Value


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one test; `story`: a line on every decision, up to its last expectation."""

    name: str
    differences: tuple[Difference, ...]
    story: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Tell whether all expectations were met."""
        return not self.differences

    def text(self, file: str, *, story: bool = False) -> str:
        """Format the result for people; `story`: with the decisions, which a failure always shows."""
        lines = [f"{'ok  ' if self.passed else 'FAIL'}  {self.name}"]
        for one in self.differences:
            lines += [f"    {file}:{one.line}:{one.column}: {one.what}", f"      exp: {one.expected}"]
            lines.append(f"      got: {one.got}")
        if story or not self.passed:
            lines.append("    what was decided:" if self.story else "    nothing was decided")
            lines += [f"      {line}" for line in self.story]
        return "\n".join(lines)


def run_test(file: TestFile, test: RuleTest, progress: Progress | None = None) -> Result:
    """Run one test; `progress` gets the share that is done, at intervals."""
    stage = Stage(file, test)
    waiting = list(test.expectations)
    found: list[Difference] = []
    for at_ns in stage.play(sorted({one.shape.at for one in waiting}), progress):
        while waiting and waiting[0].shape.at == at_ns:
            found += differences(waiting.pop(0), stage, file.tolerance_ns)
    found.sort(key=lambda one: (one.line, one.column))
    return Result(test.name, tuple(found), tuple(_line(stage, one) for one in stage.decisions))


def _line(stage: Stage, decision: Decision) -> str:
    at = f"{seconds(decision.now_ns - T0_NS)}: {decision.rule} {subject_text(stage.name(decision.subject))}"
    what = decision.state if decision.action is None else f"firing, {decision.action}"
    return f"{at}: {what}: {decision.outcome} (since {seconds(decision.flip_ns - T0_NS)})"


RELATIVE = 1e-9
"""The tolerance of facts that are no times, as a share of the expected value."""
SHOWN = 10
"""The number of names that are shown for the differences of one side."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A failed expectation: its position, its subject, and both values as text."""

    line: int
    column: int
    what: str
    expected: str
    got: str


def differences(expectation: Expectation, stage: Stage, tolerance_ns: int) -> list[Difference]:
    """Return the differences from an expectation now."""
    shape = expectation.shape
    found: list[tuple[str, str, str]] = []
    if shape.stream is not None:
        found = _facts(shape.facts, stage.facts(shape.stream, shape.facts), tolerance_ns)
        whose = f"stream {shape.stream}"
    elif shape.alert is not None:
        found = _alerts(shape.firing, stage, shape.alert)
        whose = f"alert {shape.alert}"
    else:
        assert shape.rule is not None  # noqa: S101  one of the three
        whose = f"rule {shape.rule}"
        if shape.firing is not None:
            found += _standing("firing", shape.firing, stage.firing(shape.rule), tolerance_ns)
        if shape.pending is not None:
            found += _standing("pending", shape.pending, stage.pending(shape.rule), tolerance_ns)
        if shape.actions is not None:
            seen = stage.actions(shape.rule)
            for verb, counts in shape.actions.items():
                found += _counts(f"actions: {verb}", counts, seen.get(verb, Counter()))
        if shape.ends is not None:
            found += _counts("ends", shape.ends, stage.ends(shape.rule))
    prefix = f"at {seconds(shape.at)}, {whose}"
    mark = expectation.mark
    return [Difference(mark.line, mark.column, f"{prefix}: {what}", exp, got) for what, exp, got in found]


def seconds(length_ns: int) -> str:
    """Format ns as seconds with all their digits: `1.85s`, `0.400000001s`."""
    whole = f"{Fraction(length_ns, 10**9).__float__():.9f}".rstrip("0").rstrip(".")
    return f"{whole or '0'}s"


def subject_text(about: str | tuple[tuple[str, str], ...], since_ns: int | None = None) -> str:
    """Format a subject as a file of tests writes it."""
    since = "" if since_ns is None else f"since: {seconds(since_ns)}"
    if isinstance(about, str):
        return f"{{stream: {about}, {since}}}" if since else about
    pairs = [f"{name}: {value}" for name, value in about]
    return "{" + ", ".join([*pairs, *([since] if since else [])]) + "}"


def _standing(
    what: str, expected: tuple[Subject, ...] | int, got: list[Standing], tolerance_ns: int
) -> list[tuple[str, str, str]]:
    if isinstance(expected, int):
        return [] if expected == len(got) else [(f"how many are {what}", str(expected), str(len(got)))]
    wanted = {one.stream or one.labels: one.since_ns for one in expected}
    seen = {one.about: one.since_ns for one in got}
    wrong = {
        about
        for about, since_ns in wanted.items()
        if about in seen and since_ns is not None and abs(since_ns - seen[about]) > tolerance_ns
    }
    if wanted.keys() == seen.keys() and not wrong:
        return []
    # All of both sides if they are few; else only those of one side alone.
    few = len(wanted) + len(seen) <= SHOWN
    left = [(one, wanted[one]) for one in wanted if few or one not in seen or one in wrong]
    right = [
        (one, seen[one] if one in wrong or (few and wanted.get(one) is not None) else None)
        for one in seen
        if few or one not in wanted or one in wrong
    ]
    return [(what, _list(left), _list(right))]


def _list(those: list[tuple[str | tuple[tuple[str, str], ...], int | None]]) -> str:
    words = sorted(subject_text(*one) for one in those)
    more = f", and {len(words) - SHOWN} more" if len(words) > SHOWN else ""
    return f"[{', '.join(words[:SHOWN])}{more}]"


def _alerts(expected: tuple[Subject, ...] | int, stage: Stage, name: str) -> list[tuple[str, str, str]]:
    got = {tuple(pair for pair in one.key if pair[0] != "alertname"): one.count for one in stage.alerts(name)}
    if isinstance(expected, int):
        return [] if expected == len(got) else [("how many are firing", str(expected), str(len(got)))]
    wanted = {one.labels: one.count for one in expected}
    if wanted.keys() == got.keys() and all(count in (None, got[labels]) for labels, count in wanted.items()):
        return []
    return [("firing", _alerts_text(wanted.items()), _alerts_text(got.items()))]


def _alerts_text(alerts: Iterable[tuple[tuple[tuple[str, str], ...], int | None]]) -> str:
    words = []
    for labels, count in alerts:
        pairs = [f"{name}: {value}" for name, value in labels] + ([] if count is None else [f"count: {count}"])
        words.append("{" + ", ".join(pairs) + "}")
    return f"[{', '.join(sorted(words))}]"


def _counts(what: str, expected: Mapping[Any, int], got: Mapping[str, int]) -> list[tuple[str, str, str]]:
    if all(got.get(word, 0) == count for word, count in expected.items()):
        return []
    words = [f"{word}: {got.get(word, 0)}" for word in dict.fromkeys([*expected, *got])]
    return [(what, _pairs(expected), "{" + ", ".join(words) + "}")]


def _pairs(values: Mapping[str, object]) -> str:
    return "{" + ", ".join(f"{name}: {_shown(value)}" for name, value in values.items()) + "}"


def _facts(
    expected: Mapping[str, Value | None], got: Mapping[str, Value | None] | None, tolerance_ns: int
) -> list[tuple[str, str, str]]:
    if got is None:
        return [("facts", _pairs(expected), "the stream is not in flight")]
    wrong = [name for name, value in expected.items() if not _same(name, value, got[name], tolerance_ns)]
    if not wrong:
        return []
    return [("facts", _pairs({name: expected[name] for name in wrong}), _pairs({name: got[name] for name in wrong}))]


def _same(name: str, expected: Value | None, got: Value | None, tolerance_ns: int) -> bool:
    fact = FACTS[name]
    if expected is None or got is None or fact.type != "double":
        return expected == got
    off = abs(float(expected) - float(got))
    return off <= (tolerance_ns / 1e9 if fact.unit == "s" else RELATIVE * abs(float(expected)))


def _shown(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.12g}" if isinstance(value, float) else str(value)
