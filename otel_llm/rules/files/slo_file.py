"""SLO class files (`slo.yaml`): their schema, and the classes built from it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from otel_llm.config.durations import DURATION_ADVICE, exact, parse_duration_ns
from otel_llm.config.sniff import other_kind
from otel_llm.config.strict_model import Duration, StrictModel, config_errors, duration, wrong
from otel_llm.config.yaml_file import did_you_mean, load_yaml
from otel_llm.rules.files.shipped import shipped_slo_file
from otel_llm.slo.classes import (
    KINDS,
    NS_PER_S,
    Attribute,
    Benefit,
    Curve,
    Deadline,
    Fluidity,
    Objective,
    Penalty,
    Policy,
    SloClass,
    SloClasses,
)
from otel_llm.slo.fluid.fluid_rate import DEFAULT_SHARE

if TYPE_CHECKING:
    from pathlib import Path

    from otel_llm.config.yaml_file import KeyPath, YamlFile

_PARAMETERS: Final[dict[Policy, tuple[str, ...]]] = {
    "reading": ("max_idle",),
    "dslo": ("ttft", "tpot"),
    "ttft_tbt": ("ttft", "tbt"),
    "ttft_tpot": ("ttft", "tpot"),
    "e2e": ("e2e",),
}
_WORDS_PER_S: Final = re.compile(r"(\d+(?:\.\d+)?) words/s", re.ASCII)
_SPEED_ADVICE: Final = "write tokens/s, as 5, or `3.5 words/s`"
_MISSING: Final[dict[KeyPath, str]] = {
    ("default",): "write `default: NAME`: the class that is taken where no other fits"
}
_MOST: Final = 10**12


def load_slo(path: Path | str | None = None) -> SloClasses:
    """Read an SLO file, the shipped one without a path; raises ConfigError with file, line, key and advice."""
    return slo_of(load_yaml(shipped_slo_file() if path is None else path))


def slo_of(file: YamlFile) -> SloClasses:
    """Build the classes of a parsed SLO file; raises as `load_slo` does."""
    other = other_kind(file, [key for key in _File.model_fields if key != "version"], "SLO classes")
    if other is not None:
        raise other
    try:
        model = _File.model_validate(file.data)
    except ValidationError as error:
        raise config_errors(file, error, missing=_MISSING)[0] from None
    if model.default not in model.classes:
        advice = did_you_mean(model.default, list(model.classes))
        raise file.refuse(("default",), f"no class {model.default!r} in this file", advice)
    per_word = exact(model.tokens_per_word)
    return SloClasses(tuple(body.build(name, per_word) for name, body in model.classes.items()), model.default)


def _target(value: object) -> int:
    length_ns = duration(value)
    if length_ns == 0:
        raise wrong("must be longer than zero: misses are counted in it", DURATION_ADVICE)
    return length_ns


def _share(value: object) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise wrong(f"{value!r} is no share", "write a number from 0 to 1, as 0.99")
    return exact(value)


def _amount(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _MOST:
        raise wrong(f"{value!r} is no amount", "write a number from 0 to 1e12")
    return float(value)


@dataclass(frozen=True, slots=True)
class _Speed:
    """A reading speed; the number of tokens a word has is another key of the file."""

    per_s: Fraction
    in_words: bool


def _speed(value: object) -> _Speed:
    words = _WORDS_PER_S.fullmatch(value) if isinstance(value, str) else None
    if words is None and (isinstance(value, bool) or not isinstance(value, (int, float))):
        raise wrong(f"{value!r} is no reading speed", _SPEED_ADVICE)
    speed = Fraction(words[1]) if words else exact(float(str(value)))
    if not Fraction(1, 10**6) <= speed <= 10**6:
        raise wrong(f"a reading speed is from 1e-6 to 1e6 a second, {value!r} is not", _SPEED_ADVICE)
    return _Speed(speed, words is not None)


def _first_target(value: object) -> int | Curve:
    if not isinstance(value, dict):
        return duration(value)
    for key in value:
        if key != "curve":
            raise wrong(
                "unknown key",
                "a first-token target is a duration or {curve: [[input tokens, duration], ...]}",
                key,
                at_key=True,
            )
    points = value.get("curve")
    if not isinstance(points, list) or not points:
        raise wrong("no points", "write [[256, 80ms], [1024, 200ms]]", "curve")
    curve: list[tuple[int, int]] = []
    for index, point in enumerate(points):
        if not isinstance(point, list) or len(point) != 2:
            raise wrong("a point is [input tokens, duration]", "write [256, 80ms]", "curve", index)
        tokens, length = point
        if not isinstance(tokens, int) or isinstance(tokens, bool) or not 0 <= tokens <= _MOST:
            raise wrong(f"{tokens!r} is no number of input tokens", "write a whole number", "curve", index, 0)
        try:
            length_ns = parse_duration_ns(length)
        except ValueError as error:
            raise wrong(str(error), DURATION_ADVICE, "curve", index, 1) from None
        if curve and tokens <= curve[-1][0]:
            raise wrong("input tokens do not increase", "write the points in order", "curve", index, 0)
        if curve and length_ns < curve[-1][1]:
            raise wrong("the curve falls", "a longer prompt is not due earlier", "curve", index, 1)
        curve.append((tokens, length_ns))
    return Curve(tuple(curve))


def _pairs(value: object) -> tuple[tuple[str, Attribute], ...]:
    if not isinstance(value, dict) or not value:
        raise wrong("not a mapping of attributes", "write {gen_ai.operation.name: chat} or leave it out")
    for key, wanted in value.items():
        if not isinstance(wanted, (str, int, float, bool)):
            raise wrong("matches only a string, a number, true or false", "", key)
    return tuple(value.items())


def _kinds(value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or not value:
        raise wrong("not a list of kinds", f"write {list(KINDS)} or some of them".replace("'", ""))
    for index, kind in enumerate(value):
        if kind not in KINDS:
            raise wrong(f"{kind!r} is no kind of token", did_you_mean(str(kind), KINDS), index)
        if kind in value[:index]:
            raise wrong(f"{kind} stands here twice", "", index)
    return tuple(KINDS.index(kind) for kind in value)


def _words(value: object) -> float:
    tokens = _amount(value)
    if not 0.01 <= tokens <= 100:
        raise wrong(f"{value!r} is no number of tokens in a word", "write a number from 0.01 to 100, as 1.3")
    return tokens


_Target = Annotated[int, BeforeValidator(_target)]
_Share = Annotated[Fraction | None, BeforeValidator(_share)]
_Amount = Annotated[float, BeforeValidator(_amount)]


class _Deadline(StrictModel):
    policy: Policy = "reading"
    max_idle: Duration = 0
    ttft: Duration = 0
    tpot: Duration = 0
    tbt: Duration = 0
    e2e: Duration = 0

    @model_validator(mode="after")
    def _just_its_own_parameters(self) -> _Deadline:
        wanted = _PARAMETERS[self.policy]
        takes = f"{self.policy} takes {' and '.join(wanted)}"
        for name in sorted(self.model_fields_set - {"policy"}):
            if name not in wanted:
                raise wrong(f"policy {self.policy} has no such parameter", takes, name)
        for name in wanted:
            if self.policy != "reading" and name not in self.model_fields_set:
                raise wrong("missing", takes, name)
        return self

    def build(self) -> Deadline:
        return Deadline(self.policy, *(getattr(self, name) for name in _PARAMETERS[self.policy]))


class _Fluidity(StrictModel):
    ttft: Annotated[int | Curve, BeforeValidator(_first_target)] = NS_PER_S
    tbt: _Target = 50_000_000
    slack: Duration = 0
    ttft_credit: Literal["carry", "drop"] = "carry"
    count: Literal["deadlines", "tokens"] = "deadlines"


class _Benefit(StrictModel):
    alpha: _Amount = 2.5
    penalty: Penalty = "linear"
    abort_penalty: _Amount = 0.0


class _Objective(StrictModel):
    fluidity_index: _Share = None
    share: _Share = None
    attainment: _Share = None


class _Class(StrictModel):
    match: Annotated[tuple[tuple[str, Attribute], ...], BeforeValidator(_pairs)] = ()
    reading_speed: Annotated[_Speed, BeforeValidator(_speed)] = _Speed(Fraction(5), in_words=False)
    priority: int = 0
    reads: Annotated[tuple[int, ...], BeforeValidator(_kinds)] = (0,)
    start: Duration = 0
    # The default of the block differs from the default of its key: reading with max_idle left out is the paper's.
    deadline: _Deadline = _Deadline.model_validate({"max_idle": "1s"})
    fluidity: _Fluidity = _Fluidity()
    benefit: _Benefit = _Benefit()
    objective: _Objective = _Objective()

    def build(self, name: str, tokens_per_word: Fraction) -> SloClass:
        speed = self.reading_speed.per_s * (tokens_per_word if self.reading_speed.in_words else 1)
        fluidity, benefit, objective = self.fluidity, self.benefit, self.objective
        share = objective.share
        if share is None and objective.fluidity_index is not None:
            share = DEFAULT_SHARE
        return SloClass(
            name=name,
            match=self.match,
            pace_ns=max(1, round(NS_PER_S / speed)),
            priority=self.priority,
            reads=self.reads,
            start_ns=self.start,
            deadline=self.deadline.build(),
            fluidity=Fluidity(fluidity.ttft, fluidity.tbt, fluidity.slack, fluidity.ttft_credit, fluidity.count),
            benefit=Benefit(benefit.alpha, benefit.penalty, benefit.abort_penalty),
            objective=Objective(objective.fluidity_index, share, objective.attainment),
        )


class _File(StrictModel):
    version: Literal[1]
    default: str
    classes: Annotated[dict[Annotated[str, Field(min_length=1)], _Class], Field(min_length=1)]
    tokens_per_word: Annotated[float, BeforeValidator(_words)] = 1.3
