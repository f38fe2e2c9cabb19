"""The schema of files of rule tests: allowed keys and values, and their defaults."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args

from pydantic import BeforeValidator, Field, model_validator

from otel_llm import semconv
from otel_llm.config.durations import DURATION_ADVICE, parse_duration_ns
from otel_llm.config.strict_model import Duration, StrictModel, wrong
from otel_llm.config.yaml_file import did_you_mean
from otel_llm.rules.language.facts import LABELS

MOST_COPIES: Final = 10_000
_MS: Final = 1_000_000
DecidedWord: TypeAlias = Literal["decided", "budget", "only_if"]
"""The result of an action: within its budget and its `only_if`, whatever its mode; or stopped by one of them."""
EndWord: TypeAlias = Literal["resolved", "ended", "refuted"]
KINDS_OF_EXPECTATION: Final = {
    "rule": ("firing", "pending", "actions", "ends"),
    "stream": ("facts",),
    "alert": ("firing",),
}
"""The keys that each kind of expectation may have besides `at`; a kind is known by its own key."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The expected subject of a firing: a stream's id, or labels; times are ns since the test's start."""

    stream: str | None
    labels: tuple[tuple[str, str], ...] = ()
    since_ns: int | None = None
    count: int | None = None
    """For an alert: the number of its streams, instances or classes."""


def _name(value: object) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise wrong(f"{value!r} is no name", "write a line of text")
    return value


def _times(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise wrong(f"{value!r} is no count", "write a whole number from 0")
    return value


def _subjects(value: object) -> tuple[Subject, ...] | int:
    if isinstance(value, int) and not isinstance(value, bool):
        return _times(value)
    if not isinstance(value, list):
        raise wrong("neither a list nor a count", "write [r1, r2], [] for none, or how many")
    return tuple(_subject(one, at) for at, one in enumerate(value))


def _subject(value: object, at: int) -> Subject:
    if isinstance(value, str):
        return Subject(value)
    if not isinstance(value, dict):
        raise wrong(f"{value!r} is no subject", "write a stream's id, or labels as {model: m, instance: a}", at)
    known = ("stream", *LABELS, "since", "count")
    for key, one in value.items():
        if key not in known:
            raise wrong("unknown key", did_you_mean(key, known), at, key, at_key=True)
        if key in ("stream", *LABELS) and not isinstance(one, str):
            raise wrong("not a string", "put it in quotes", at, key)
    try:
        since_ns = parse_duration_ns(value["since"]) if "since" in value else None
    except ValueError as error:
        raise wrong(str(error), DURATION_ADVICE, at, "since") from None
    if "count" in value and (not isinstance(value["count"], int) or value["count"] is True or value["count"] < 1):
        raise wrong("no count", "write a whole number from 1", at, "count")
    labels = tuple(sorted((name, value[name]) for name in LABELS if name in value))
    if "stream" in value and labels:
        raise wrong("a stream and labels", "a stream's id says all", at, labels[0][0])
    return Subject(value.get("stream"), labels, since_ns, value.get("count"))


def _facts(value: object) -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        raise wrong("no facts", "write {runway_seconds: 0.5, tokens: 12}; null is: missing")
    for name, one in value.items():
        if isinstance(one, float) and not math.isfinite(one):
            raise wrong(f"{one!r} is not a finite number", "", name)
        if one is not None and not isinstance(one, (str, int, float)):
            raise wrong("no value of a fact", "write a number, a string, true, false or null", name)
    return value


def _actions(value: object) -> dict[str, dict[str, int]]:
    """Read `migrate: 2` as two decided migrations, whether or not a budget stopped them."""
    if not isinstance(value, dict) or not value:
        raise wrong("no actions", "write {migrate: 1} or {migrate: {decided: 1, budget: 0}}")
    words = get_args(DecidedWord)
    found: dict[str, dict[str, int]] = {}
    for verb, given in value.items():
        counts = given if isinstance(given, dict) else {"decided": given}
        for word, count in counts.items():
            if word not in words:
                raise wrong("unknown key", did_you_mean(str(word), words), verb, word, at_key=True)
            if not isinstance(count, int) or isinstance(count, bool) or count < 0:
                below = (verb, word) if isinstance(given, dict) else (verb,)
                raise wrong(f"{count!r} is no count", "write a whole number from 0", *below)
        found[verb] = counts
    return found


_Name = Annotated[str, BeforeValidator(_name)]
_Times = Annotated[int, BeforeValidator(_times)]
_Subjects = Annotated[Any, BeforeValidator(_subjects)]


class TelemetryShape(StrictModel):
    """The fate of segments sent in [from, to): they are lost, or delayed more than usual."""

    from_: Duration = Field(0, alias="from")
    to: Duration | None = None
    delay: Duration | None = None
    lost: bool = False

    @model_validator(mode="after")
    def _one_of_both(self) -> TelemetryShape:
        if self.lost is (self.delay is not None):
            raise wrong("what happens to it?", "write `delay: 2s` or `lost: true`")
        if self.to is not None and self.to <= self.from_:
            raise wrong("ends before it begins", "write when it is over, since the test's start", "to")
        return self


class StreamShape(StrictModel):
    """One stream, or `copies` of it that begin `every` so long after each other."""

    id: _Name
    arrivals: str
    start: Duration = 0
    copies: Annotated[int, Field(ge=1, le=MOST_COPIES)] = 1
    every: Duration = 0
    class_: _Name | None = Field(None, alias="class")
    model: _Name | None = "m"
    instance: _Name | None = None
    measured_at: Literal["client", "relay", "server"] = semconv.MEASURED_AT_VALUES[0]
    operation: _Name = "chat"
    exact_resume: bool = False
    token_basis: Literal["exact", "chunk", "estimated"] = "exact"  # noqa: S105
    token_ratio_learned: bool = False
    keep_alive: Annotated[Duration, Field(gt=0)] | None = None
    input_tokens: Annotated[int, Field(ge=0, le=10**9)] | None = None
    delay: Duration = 0
    telemetry: list[TelemetryShape] = Field(default_factory=list)


class ExpectShape(StrictModel):
    """An expectation at an instant since the test's start, everything at that very instant included."""

    at: Duration
    rule: _Name | None = None
    stream: _Name | None = None
    alert: _Name | None = None
    firing: _Subjects = None
    pending: _Subjects = None
    actions: Annotated[Any, BeforeValidator(_actions)] = None
    ends: dict[EndWord, _Times] | None = None
    facts: Annotated[Any, BeforeValidator(_facts)] = None

    @model_validator(mode="after")
    def _of_one_kind(self) -> ExpectShape:
        given = [name for name in KINDS_OF_EXPECTATION if getattr(self, name) is not None]
        if len(given) != 1:
            raise wrong("of what?", f"name one of {', '.join(KINDS_OF_EXPECTATION)}", *given[1:2])
        may = KINDS_OF_EXPECTATION[given[0]]
        for name in sorted(self.model_fields_set - {"at", *KINDS_OF_EXPECTATION}):
            if name not in may:
                raise wrong(f"not of a {given[0]}", f"of a {given[0]} it can be {', '.join(may)}", name)
        if not self.model_fields_set & set(may):
            raise wrong("nothing is expected", f"add {' or '.join(may)}")
        return self

    @property
    def kind(self) -> str:
        """Return the kind of the expectation."""
        return next(name for name in KINDS_OF_EXPECTATION if getattr(self, name) is not None)


class TestShape(StrictModel):
    """One test: streams on a clock that begins at 0, and expectations at instants."""

    __test__ = False
    name: _Name
    streams: list[StreamShape]
    expect: Annotated[list[ExpectShape], Field(min_length=1)]


class FileShape(StrictModel):
    """A whole file. `slo` is the name of an SLO file, or the contents of one; by default the shipped classes."""

    version: Literal[1]
    rule_files: Annotated[list[_Name], Field(min_length=1)]
    slo: Any = None
    lateness: Duration = 5_000 * _MS
    lost_after: Duration = 120_000 * _MS
    tolerance: Duration = _MS
    tests: Annotated[list[TestShape], Field(min_length=1)]
