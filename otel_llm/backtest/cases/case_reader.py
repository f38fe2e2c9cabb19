"""Read a file of rule tests: its structure, its scripts, its rules and classes, and whether its names exist."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

from pydantic import ValidationError

from otel_llm.backtest.cases.arrivals import Arrivals, parse_arrivals
from otel_llm.backtest.cases.case_schema import ExpectShape, FileShape, StreamShape, Subject, TestShape
from otel_llm.config.strict_model import config_errors
from otel_llm.config.yaml_file import VERSION, ConfigError, YamlFile, did_you_mean, load_yaml
from otel_llm.rules.files.expression_errors import expression_error
from otel_llm.rules.files.load import RulesError, load_rules
from otel_llm.rules.files.ruleset import Verb
from otel_llm.rules.files.slo_file import load_slo, slo_of
from otel_llm.rules.language.facts import FACTS, in_scope
from otel_llm.rules.language.tokens import ExpressionError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from otel_llm.config.yaml_file import KeyPath, Mark
    from otel_llm.rules.files.ruleset import RuleSet
    from otel_llm.slo.classes import SloClasses

MOST_WORK: Final = 2_000_000
"""The most tokens of all streams of a test, plus the seconds in flight: a silent stream sends a segment each."""
LONGEST_NS: Final = 7 * 24 * 3600 * 10**9
"""The latest instant of a test: more than any window of a rule reaches."""


@dataclass(frozen=True, slots=True)
class Script:
    """One stream of a test, or one of its copies: its identity, commit and arrivals; `number` from 1."""

    number: int
    id: str
    start_ns: int
    shape: StreamShape
    arrivals: Arrivals


@dataclass(frozen=True, slots=True)
class Expectation:
    """One expectation, and its position in the file."""

    shape: ExpectShape
    mark: Mark


@dataclass(frozen=True, slots=True)
class RuleTest:
    """One test."""

    name: str
    scripts: tuple[Script, ...]
    expectations: tuple[Expectation, ...]
    """In order of their instants, then of the file."""


@dataclass(frozen=True, slots=True)
class TestFile:
    """A file of tests without errors."""

    __test__ = False
    path: Path
    rules: RuleSet
    classes: SloClasses
    lateness_ns: int
    lost_after_ns: int
    tolerance_ns: int
    tests: tuple[RuleTest, ...]


def read_test_file(path: Path) -> TestFile:
    """Read a file of tests, and the rules and classes that it names.

    Raises RulesError with all errors of it and of its rules, UnreadableConfigError where one of the files cannot be
    read.
    """
    file = load_yaml(path)
    if "groups" in file.data and not {"rule_files", "tests"} & file.data.keys():
        advice = "give this file to `otel-llm rules check`, or name it in the `rule_files` of its tests"
        raise RulesError([file.refuse(("groups",), "rules, and no tests of them", advice, at_key=True)])
    try:
        shape = FileShape.model_validate(file.data)
    except ValidationError as error:
        raise RulesError(config_errors(file, error)) from None
    rules = load_rules([path.parent / name for name in shape.rule_files], executors=get_args(Verb))
    classes = _classes(file, shape.slo)
    reader = _Reader(file, rules, classes.names)
    tests = tuple(reader.test(one, ("tests", at)) for at, one in enumerate(shape.tests))
    reader.names_stand_once([one.name for one in shape.tests], ("tests",), "name")
    if reader.errors:
        raise RulesError(sorted(reader.errors, key=lambda error: (error.line or 0, error.column or 0)))
    return TestFile(path, rules, classes, shape.lateness, shape.lost_after, shape.tolerance, tests)


def _classes(file: YamlFile, slo: Any) -> SloClasses:
    if slo is None:
        return load_slo()
    if isinstance(slo, str):
        return load_slo(Path(file.file).parent / slo)
    if not isinstance(slo, dict):
        raise file.refuse(("slo",), "no SLO classes", "name a file, or write {default: chat, classes: {chat: {}}}")

    def below(marks: dict[KeyPath, Mark]) -> dict[KeyPath, Mark]:
        return {path[1:]: mark for path, mark in marks.items() if path[:1] == ("slo",)}

    return slo_of(YamlFile(file.file, file.text, {"version": VERSION, **slo}, below(file.values), below(file.keys)))


class _Reader:
    """The builder of tests; it collects the errors."""

    def __init__(self, file: YamlFile, rules: RuleSet, classes: Sequence[str]) -> None:
        self.errors: list[ConfigError] = []
        self._file = file
        self._classes = classes
        self._rules = {rule.name: rule for rule in rules.rules}
        self._alerts = [
            str(name)
            for rule in rules.rules
            for action in rule.actions
            for key, name in action.arguments
            if action.verb == "alert" and key == "name"
        ]

    def test(self, shape: TestShape, path: KeyPath) -> RuleTest:
        scripts: list[Script] = []
        for at, stream in enumerate(shape.streams):
            scripts += self._scripts(stream, len(scripts), (*path, "streams", at))
        self.names_stand_once([one.id for one in shape.streams], (*path, "streams"), "id")
        until_ns = max(one.at for one in shape.expect)
        if until_ns > LONGEST_NS:
            latest = [one.at for one in shape.expect].index(until_ns)
            self._wrong((*path, "expect", latest, "at"), "later than seven days", "nothing looks back so far")
        elif sum(_work(one, until_ns) for one in scripts) > MOST_WORK:
            advice = "make fewer copies, or end them"
            self._wrong((*path, "streams"), f"more than {MOST_WORK} tokens and seconds in flight, all together", advice)
        ids = {one.id for one in scripts}
        for at, expect in enumerate(shape.expect):
            self._expect(expect, ids, (*path, "expect", at))
        expectations = [
            Expectation(one, self._file.value_mark((*path, "expect", at))) for at, one in enumerate(shape.expect)
        ]
        return RuleTest(shape.name, tuple(scripts), tuple(sorted(expectations, key=lambda one: one.shape.at)))

    def names_stand_once(self, names: Sequence[str], path: KeyPath, key: str) -> None:
        for at, name in enumerate(names):
            if name in names[:at]:
                first = self._file.value_mark((*path, names.index(name), key)).line
                self._wrong((*path, at, key), f"another is called {name}", f"it stands in line {first}")

    def _scripts(self, shape: StreamShape, before: int, path: KeyPath) -> Iterator[Script]:
        try:
            arrivals = parse_arrivals(shape.arrivals)
        except ExpressionError as error:
            place = (*path, "arrivals")
            self.errors.append(expression_error(self._file, place, shape.arrivals, error))
            arrivals = Arrivals((), (), None, None)
        if shape.class_ is not None:
            # A collector would use the default class for it, and the test would be of another class than it states.
            self._known(shape.class_, self._classes, "SLO class", (*path, "class"))
        for copy in range(shape.copies):
            name = shape.id if shape.copies == 1 else f"{shape.id}.{copy + 1}"
            yield Script(before + copy + 1, name, shape.start + copy * shape.every, shape, arrivals)

    def _expect(self, shape: ExpectShape, ids: set[str], path: KeyPath) -> None:
        if shape.stream is not None:
            self._known(shape.stream, sorted(ids), "stream", (*path, "stream"))
            facts = in_scope("stream")
            for name, value in shape.facts.items():
                place = (*path, "facts", name)
                if name in FACTS and name not in facts:
                    self._wrong(place, f"{name!r} is no fact of a stream", "ask a rule that uses it", at_key=True)
                elif name not in facts:
                    self._wrong(place, f"unknown fact {name!r}", did_you_mean(name, list(facts)), at_key=True)
                elif value is not None and not _fits(value, facts[name].type):
                    self._wrong(place, f"{value!r} is no {facts[name].type}", f"{name} is of type {facts[name].type}")
            return
        if shape.alert is not None:
            self._known(shape.alert, self._alerts, "alert", (*path, "alert"))
            self._subjects(shape.firing, "an alert", ids, (*path, "firing"))
            return
        assert shape.rule is not None  # noqa: S101  one of the three
        if not self._known(shape.rule, list(self._rules), "rule", (*path, "rule")):
            return
        rule = self._rules[shape.rule]
        for key in ("firing", "pending"):
            self._subjects(getattr(shape, key), f"a rule of scope {rule.scope}", ids, (*path, key))
        verbs = [action.verb for action in rule.actions]
        for verb in shape.actions or ():
            self._known(verb, verbs, "action of this rule", (*path, "actions", verb), at_key=True)

    def _subjects(self, subjects: tuple[Subject, ...] | int | None, whose: str, ids: set[str], path: KeyPath) -> None:
        for at, one in enumerate(subjects if isinstance(subjects, tuple) else ()):
            of_streams = whose.endswith("stream")
            if one.stream is not None and not of_streams:
                self._wrong((*path, at), f"{whose} fires for labels", "write {slo_class: chat, model: m}")
            elif one.stream is not None:
                self._known(one.stream, sorted(ids), "stream", (*path, at))
            elif of_streams:
                self._wrong((*path, at), f"{whose} fires for streams", "write an id, or {stream: r1, since: 2s}")
            if one.count is not None and whose != "an alert":
                self._wrong((*path, at, "count"), "only an alert has a count", "write how many instead of the list")
            if one.since_ns is not None and whose == "an alert":
                self._wrong((*path, at, "since"), "an alert is not asked since when", "ask its rule")

    def _known(self, name: str, known: Sequence[str], what: str, path: KeyPath, *, at_key: bool = False) -> bool:
        if name in known:
            return True
        advice = did_you_mean(name, known) if len(known) < 50 else did_you_mean(name, [*known[:20], "..."])
        self._wrong(path, f"no {what} {name!r}", advice, at_key=at_key)
        return False

    def _wrong(self, path: KeyPath, message: str, advice: str, *, at_key: bool = False) -> None:
        self.errors.append(self._file.refuse(path, message, advice, at_key=at_key))


def _work(script: Script, until_ns: int) -> int:
    """Count a script's tokens and the seconds that it is in flight."""
    arrivals = script.arrivals
    left_ns = max(0, until_ns - script.start_ns)
    in_flight_ns = left_ns if arrivals.end_ns is None else min(left_ns, arrivals.end_ns)
    return len(arrivals.times_ns) + in_flight_ns // 10**9


def _fits(value: object, kind: str) -> bool:
    if kind == "double":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return type(value) is {"bool": bool, "int": int, "string": str}[kind]
