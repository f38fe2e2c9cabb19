"""Read a file of rule tests: its structure, its scripts, its rules and classes, and whether its names exist."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

from pydantic import ValidationError

from otel_llm.backtest.cases.case_schema import ExpectShape, FileShape, StreamShape, Subject, TestShape
from otel_llm.config.durations import DURATION_ADVICE, parse_duration_ns
from otel_llm.config.strict_model import config_errors
from otel_llm.config.yaml_file import VERSION, ConfigError, YamlFile, did_you_mean, load_yaml
from otel_llm.rules.files.expression_errors import expression_error
from otel_llm.rules.files.load import RulesError, load_rules
from otel_llm.rules.files.ruleset import Verb
from otel_llm.rules.files.slo_file import load_slo, slo_of
from otel_llm.rules.language.facts import FACTS, in_scope
from otel_llm.rules.language.tokens import ExpressionError
from otel_llm.slo.classes import KINDS

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

    Raises RulesError with all errors of it and of its rules, UnreadableConfigError if one of the files cannot be
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
    parser = _CaseParser(file, rules, classes.names)
    tests = tuple(parser.test(one, ("tests", at)) for at, one in enumerate(shape.tests))
    parser.names_stand_once([one.name for one in shape.tests], ("tests",), "name")
    if parser.errors:
        raise RulesError(sorted(parser.errors, key=lambda error: (error.line or 0, error.column or 0)))
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


class _CaseParser:
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
            key_path = (*path, "arrivals")
            self.errors.append(expression_error(self._file, key_path, shape.arrivals, error))
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
                key_path = (*path, "facts", name)
                if name in FACTS and name not in facts:
                    self._wrong(key_path, f"{name!r} is no fact of a stream", "ask a rule that uses it", at_key=True)
                elif name not in facts:
                    self._wrong(key_path, f"unknown fact {name!r}", did_you_mean(name, list(facts)), at_key=True)
                elif value is not None and not _fits(value, facts[name].type):
                    self._wrong(
                        key_path, f"{value!r} is no {facts[name].type}", f"{name} is of type {facts[name].type}"
                    )
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


OUTCOMES: Final = ("completed", "cancelled", "abandoned", "disconnected", "error")
"""The outcomes that a script may state; `completed` is the default."""
MOST_TOKENS: Final = 100_000
"""The most tokens of one script."""
LONGEST_SCRIPT: Final = 4096
_TOKENS: Final = re.compile(r"(?:(?P<count>\d+)\s*x\s*)?(?P<length>[\d.]+[a-z]*)(?:\s+(?P<kind>[A-Za-z_]+))?", re.ASCII)
_WAIT: Final = re.compile(r"wait\s+(?P<length>\S+)")
_END: Final = re.compile(r"end(?:\s+(?P<outcome>[A-Za-z_]+))?")
_ITEM_ADVICE: Final = "write `50ms`, `20x50ms`, `20x50ms reasoning`, `wait 1s`, `end`, `end error` or `vanish`"


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The tokens of a stream: ns since the commit, not decreasing, and each token's kind, as its index in `KINDS`.

    `end_ns`: when the stream ends, None if it stays open; `outcome`: None for a sender that vanishes.
    """

    times_ns: tuple[int, ...]
    kinds: tuple[int, ...]
    end_ns: int | None
    outcome: str | None


def parse_arrivals(text: str) -> Arrivals:
    """Parse a script of arrivals: `300ms, 20x50ms, wait 600ms, 20x50ms, end` to instants since the commit.

        script  = item *("," item)
        item    = [count "x"] duration [kind]   tokens, each this long after the one before
                | "wait" duration               no token; what follows counts from its end
                | "end" [outcome] | "vanish"    the last item: its outcome, or that the sender is never heard again

    The first item counts from the commit. Durations are those of rule files; kind is content (default), reasoning or
    tool. Raises ExpressionError with the position of the error.
    """
    if len(text) > LONGEST_SCRIPT:
        raise ExpressionError(f"more than {LONGEST_SCRIPT} characters", "make several streams of it", 0, len(text))
    if not text.strip():
        return Arrivals((), (), None, None)  # a stream that is committed, without tokens
    times: list[int] = []
    kinds: list[int] = []
    at_ns = 0  # of the last token, or the end of the last wait
    end: tuple[int, str | None] | None = None
    start = 0
    for item in text.split(","):
        part = _ScriptItem(start + len(item) - len(item.lstrip()), item.strip())
        start += len(item) + 1
        words = part.words
        if end is not None:
            raise part.wrong("something follows the end", "make `end` or `vanish` the last item")
        if words == "vanish":
            end = at_ns, None
        elif ended := _END.fullmatch(words):
            end = at_ns, _outcome(part, ended)
        elif wait := _WAIT.fullmatch(words):
            at_ns += _length_ns(part, wait)
        elif tokens := _TOKENS.fullmatch(words):
            length_ns, kind, count = _length_ns(part, tokens), _kind(part, tokens), int(tokens["count"] or 1)
            if not 0 < count <= MOST_TOKENS - len(times):
                raise part.wrong(f"{count} tokens", f"a script has from 1 to {MOST_TOKENS}")
            times += [at_ns + length_ns * number for number in range(1, count + 1)]
            kinds += [kind] * count
            at_ns = times[-1]
        else:
            raise part.wrong(f"{words!r} is no item of a script" if words else "an empty item", _ITEM_ADVICE)
    return Arrivals(tuple(times), tuple(kinds), *(end or (None, None)))


@dataclass(frozen=True, slots=True)
class _ScriptItem:
    start: int
    words: str

    def wrong(self, message: str, advice: str, at: int = 0, length: int | None = None) -> ExpressionError:
        start = self.start + at
        return ExpressionError(message, advice, start, start + (len(self.words) - at if length is None else length))


def _length_ns(part: _ScriptItem, found: re.Match[str]) -> int:
    text = found["length"]
    try:
        return parse_duration_ns(float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else text)
    except ValueError as error:
        raise part.wrong(str(error), DURATION_ADVICE, found.start("length"), len(text)) from None


def _kind(part: _ScriptItem, found: re.Match[str]) -> int:
    word = found["kind"] or KINDS[0]
    if word not in KINDS:
        raise part.wrong(f"{word!r} is no kind of token", did_you_mean(word, KINDS), found.start("kind"), len(word))
    return KINDS.index(word)


def _outcome(part: _ScriptItem, found: re.Match[str]) -> str:
    word = found["outcome"] or OUTCOMES[0]
    if word not in OUTCOMES:
        raise part.wrong(f"{word!r} is no outcome", did_you_mean(word, OUTCOMES), found.start("outcome"), len(word))
    return word
