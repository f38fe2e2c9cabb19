"""A scenario: profile, fleet, workload, policy; read from the data of a file with the settings of one run."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from otel_llm.config.durations import exact
from otel_llm.config.strict_model import Duration, StrictModel, config_errors, quoted, wrong
from otel_llm.config.yaml_file import UnreadableConfigError, did_you_mean
from otel_llm.scheduling.output_lengths import EXPECTED_OUTPUT
from otel_llm.scheduling.placement import DEFAULT, POLYSERVE
from otel_llm.scheduling.polyserve.settings import PolyServeSettings
from otel_llm.scheduling.profiles.profile_file import exact_duration_ns, load_profile, shipped_profiles
from otel_llm.scheduling.release_order import DEFAULT_ORDER, Order
from otel_llm.scheduling.simulator.engine import Fleet, Transfer
from otel_llm.scheduling.simulator.ordering import WINDOW
from otel_llm.scheduling.simulator.placing import PLACEMENTS
from otel_llm.scheduling.workload.arrivals import (
    ArrivalProcess,
    ConstantArrivals,
    GammaArrivals,
    PoissonArrivals,
    TraceArrivals,
)
from otel_llm.scheduling.workload.lengths import (
    FixedLength,
    LengthDistribution,
    PercentileLengths,
    TraceLengths,
    UniformLengths,
)
from otel_llm.scheduling.workload.tiers import Tier, tier_classes
from otel_llm.scheduling.workload.trace_file import MOST_TOKENS
from otel_llm.scheduling.workload.workload import WorkloadSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_llm.config.yaml_file import KeyPath, YamlFile
    from otel_llm.scheduling.profiles.profile import Profile
    from otel_llm.scheduling.workload.trace_file import Trace

    Traces = Callable[[KeyPath, str], Trace]


MOST_REQUESTS: Final = 10_000_000
MOST_INSTANCES: Final = 10_000
MOST_WINDOW: Final = 256
"""Requests of a plan: its time grows faster than their number."""
_LARGEST: Final = 10**9
_LARGEST_CV: Final = 100
_ARRIVALS: Final = "write {poisson: 40}, {constant: 40}, {gamma: 40, cv: 3} or {trace: FILE, speed: 1.0}"
_LENGTHS: Final = "write {uniform: [1, 8191]}, {fixed: 512}, {percentiles: {50: 512, 99: 4096}} or {trace: FILE}"


def positive(value: object) -> Fraction:
    """Return a number above 0, exactly; for a validator."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _LARGEST:
        raise wrong(f"{quoted(value)} is no number above 0", f"write one up to {_LARGEST}")
    return exact(value)


def _whole(most: int, least: int = 0) -> Callable[[object], int]:
    def check(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise wrong(f"{quoted(value)} is not a whole number from {least} to {most}", "write one")
        return value

    return check


def _share(value: object) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise wrong(f"{quoted(value)} is no share", "write a number above 0 up to 1, as 0.9")
    return exact(value)


def _target(value: object) -> int:
    length_ns = rounded(value)
    if not length_ns:
        raise wrong("must be longer than zero", "write for example 20ms")
    return length_ns


def rounded(value: object) -> int:
    """Return a duration in ns, rounded half up; for a validator."""
    length: Fraction = _exact_duration(value)
    return int(length + Fraction(1, 2))


def _exact_duration(value: object) -> Fraction:
    try:
        return exact_duration_ns(value)
    except ValueError as error:
        raise wrong(str(error), "write 0.76ns, 20us, 300ms, 1s or a number of seconds") from None


def _several(value: object) -> object:
    return value if isinstance(value, list) else [value]


def _coefficient(value: object) -> float:
    number = positive(value)
    if number > _LARGEST_CV:
        raise wrong(f"{quoted(value)} is too large a coefficient of variation", f"write one up to {_LARGEST_CV}")
    return float(number)


def _bounds(value: object) -> tuple[int, int]:
    check = _whole(MOST_TOKENS)
    if not isinstance(value, list) or len(value) != 2:
        raise wrong(f"{quoted(value)} is no pair of lengths", "write [1, 8191]")
    low, high = (check(one) for one in value)
    if low > high:
        raise wrong(f"{low} is above {high}", "write the lower one first")
    return low, high


def _points(value: object) -> tuple[tuple[float, int], ...]:
    if not isinstance(value, dict) or not value:
        raise wrong("not a mapping of percentiles", "write {50: 512, 99: 4096}")
    points: list[tuple[float, int]] = []
    for key, length in value.items():
        try:
            share = float(key)
        except ValueError:
            share = -1.0
        if not 0 <= share <= 100:
            raise wrong(f"{quoted(key)} is no percentile", "write a number from 0 to 100", key)
        if isinstance(length, bool) or not isinstance(length, int) or not 0 <= length <= MOST_TOKENS:
            raise wrong(f"{quoted(length)} is no number of tokens", f"write 0 to {MOST_TOKENS}", key)
        if points and (share <= points[-1][0] or length < points[-1][1]):
            raise wrong("percentiles and lengths do not rise", "write the points in order", key)
        points.append((share, length))
    return tuple(points)


def _prefill(value: object) -> object:
    if value in ("auto", None):
        return value
    if isinstance(value, str):
        raise wrong(f"{quoted(value)} is no number of instances", "write a whole number, or auto")
    return _whole(MOST_INSTANCES, 1)(value)


def _error(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise wrong(f"{quoted(value)} is no share of a length", "write a number from 0 to 1, as 0.05")
    return float(value)


def _output_lengths(value: object) -> object:
    """Return None for `seen`."""
    if value != "seen" and not isinstance(value, dict):
        raise wrong(f"{quoted(value)} is no way to know output lengths", "write seen, or {error: 0.05}")
    return value if isinstance(value, dict) else None


def _placement(value: str) -> str:
    names = [*PLACEMENTS, POLYSERVE]
    if value not in names:
        raise wrong(f"no placement {quoted(value)} in the simulator", did_you_mean(value, names))
    return value


def _margin(value: object) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise wrong(f"{quoted(value)} is no margin", "write a number from 0 to below 1, as 0.1")
    return exact(value)


def _one_of(model: StrictModel, kinds: dict[str, tuple[str, ...]], advice: str) -> str:
    """Return the one key of `kinds` that is set; refuse two, none, and options of another kind."""
    given = [kind for kind in kinds if kind in model.model_fields_set]
    if len(given) != 1:
        raise wrong(f"{' and '.join(given)} together" if given else "nothing to draw from", advice, *given[1:2])
    if getattr(model, given[0]) is None:
        raise wrong("no value", advice, given[0])
    for name in sorted(model.model_fields_set - {given[0]}):
        if name not in kinds[given[0]]:
            raise wrong(f"{given[0]} has no {name}", advice, name)
    return given[0]


Positive = Annotated[Fraction, BeforeValidator(positive)]
Target = Annotated[int, BeforeValidator(_target)]
Name = Annotated[str, Field(min_length=1, max_length=200)]


class ArrivalsShape(StrictModel):
    """One kind of arrivals."""

    poisson: Positive | None = None
    constant: Positive | None = None
    gamma: Positive | None = None
    cv: Annotated[float, BeforeValidator(_coefficient)] | None = None
    trace: Name | None = None
    speed: Positive = Fraction(1)

    @model_validator(mode="after")
    def _one_kind(self) -> ArrivalsShape:
        kind = _one_of(self, {"poisson": (), "constant": (), "gamma": ("cv",), "trace": ("speed",)}, _ARRIVALS)
        if kind == "gamma" and self.cv is None:
            raise wrong("gamma without cv", _ARRIVALS)
        return self


class LengthShape(StrictModel):
    """One distribution of lengths."""

    uniform: Annotated[tuple[int, int], BeforeValidator(_bounds)] | None = None
    fixed: Annotated[int, BeforeValidator(_whole(MOST_TOKENS))] | None = None
    percentiles: Annotated[tuple[tuple[float, int], ...], BeforeValidator(_points)] | None = None
    trace: Name | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> LengthShape:
        _one_of(self, {"uniform": (), "fixed": (), "percentiles": (), "trace": ()}, _LENGTHS)
        return self


class LengthsShape(StrictModel):
    """The lengths of prompts and replies, or both from a trace."""

    input: LengthShape | None = None
    output: LengthShape | None = None
    trace: Name | None = None

    @model_validator(mode="after")
    def _both(self) -> LengthsShape:
        if self.trace is not None and (self.input is not None or self.output is not None):
            raise wrong("a trace beside input or output", "keep one of them", "trace")
        for name in ("input", "output"):
            if self.trace is None and getattr(self, name) is None:
                raise wrong(f"no {name}", _LENGTHS)
        return self


class TierShape(StrictModel):
    """A tier."""

    name: Name
    tpot: Target
    ttft: Annotated[list[Target], Field(min_length=1), BeforeValidator(_several)]
    share: Annotated[Fraction, BeforeValidator(_share)]

    def build(self) -> Tier:
        """Return the tier."""
        return Tier(self.name, self.tpot, tuple(self.ttft), self.share)


def _tiers(value: list[TierShape]) -> list[TierShape]:
    classes = [one.slo.name for one in tier_classes([tier.build() for tier in value])]
    for what, names in (("tiers", [tier.name for tier in value]), ("classes", classes)):
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise wrong(f"two {what} {quoted(twice)}", "give each tier a name, and each of its ttft a time, of its own")
    total = sum((tier.share for tier in value), Fraction(0))
    if value and total != 1:
        raise wrong(f"the shares add up to {float(total):g}", "they must add up to 1")
    return value


class WorkloadShape(StrictModel):
    """What arrives."""

    requests: Annotated[int, BeforeValidator(_whole(MOST_REQUESTS, 1))] | None = None
    warmup: Duration = 0
    arrivals: ArrivalsShape
    lengths: LengthsShape
    expected_output: Annotated[int, BeforeValidator(_whole(MOST_TOKENS, 1))] = EXPECTED_OUTPUT
    feasible: bool = True
    tiers: Annotated[list[TierShape], AfterValidator(_tiers)] = Field(default_factory=list)

    @model_validator(mode="after")
    def _counted(self) -> WorkloadShape:
        if self.requests is None and self.arrivals.trace is None:
            raise wrong(
                "requests: missing", "write `requests: 20000`; only a trace of arrivals has a number of its own"
            )
        return self


class TransferShape(StrictModel):
    """The way of a context from a prefill to a decode instance."""

    latency: Annotated[int, BeforeValidator(rounded)] = 0
    per_token: Annotated[Fraction, BeforeValidator(_exact_duration)] = Fraction(0)


class FleetShape(StrictModel):
    """The instances."""

    instances: Annotated[int, BeforeValidator(_whole(MOST_INSTANCES, 1))]
    mode: Literal["colocated", "disaggregated"] = "colocated"
    prefill: Annotated[int | Literal["auto"] | None, BeforeValidator(_prefill)] = None
    transfer: TransferShape | None = None

    @model_validator(mode="after")
    def _pools(self) -> FleetShape:
        if self.mode == "colocated":
            for name in ("prefill", "transfer"):
                if name in self.model_fields_set:
                    raise wrong("a colocated fleet has none", "write `mode: disaggregated`, or leave it out", name)
        elif self.prefill is None:
            raise wrong("no prefill instances", "write `prefill: N`, less than instances, or `prefill: auto`")
        elif self.prefill == "auto":
            if self.instances < 2:
                raise wrong("one instance cannot be split", "write two instances or more", "prefill")
        elif self.prefill >= self.instances:
            raise wrong(f"{self.prefill} of {self.instances} leave none to decode", "write less", "prefill")
        return self

    def build(self) -> Fleet:
        """Return the fleet; of an automatic split one with a single prefill instance."""
        way = self.transfer or TransferShape()
        prefill = 1 if self.prefill == "auto" else self.prefill or 0
        return Fleet(self.instances, prefill, Transfer(way.latency, way.per_token))


class AnnealingShape(StrictModel):
    """The plans of the order `anneal`."""

    window: Annotated[int, BeforeValidator(_whole(MOST_WINDOW, 2))] = WINDOW
    max_batch: Annotated[int, BeforeValidator(_whole(MOST_WINDOW, 1))] | None = None


class KnownLengthsShape(StrictModel):
    """Output lengths that are known but for an error."""

    error: Annotated[float, BeforeValidator(_error)]


COMMON: Final = frozenset({"placement", "order", "budget", "output_lengths", "annealing"})
"""The keys of a policy that are no switches of PolyServe."""


class PolicyShape(StrictModel):
    """The policy; the keys that are not in `COMMON` are switches of PolyServe."""

    placement: Annotated[str, AfterValidator(_placement)] = DEFAULT
    order: Order = DEFAULT_ORDER
    budget: Annotated[int, BeforeValidator(_whole(MOST_TOKENS, 1))] | None = None
    output_lengths: Annotated[KnownLengthsShape | None, BeforeValidator(_output_lengths)] = None
    annealing: AnnealingShape = AnnealingShape()
    load_gradient: bool = PolyServeSettings.load_gradient
    lazy_promotion: bool = PolyServeSettings.lazy_promotion
    dynamic_chunking: bool = PolyServeSettings.dynamic_chunking
    continuous_prediction: bool = PolyServeSettings.continuous_prediction
    chunking: Literal["slack", "tpot"] = "slack"
    slack_share: Annotated[Fraction, BeforeValidator(_share)] = PolyServeSettings.slack_share
    kv_margin: Annotated[Fraction, BeforeValidator(_margin)] = PolyServeSettings.kv_margin
    late_share: Annotated[Fraction, BeforeValidator(_share)] = PolyServeSettings.late_share
    autoscale: Literal["fixed", "unlimited"] = "fixed"

    @model_validator(mode="after")
    def _switches(self) -> PolicyShape:
        if self.placement == POLYSERVE:
            if self.order != "fcfs":
                raise wrong("polyserve predicts with its own order", "leave order out", "order")
            if self.budget is not None:
                raise wrong("polyserve has budgets of its own", "leave it out, or write `placement: chunk`", "budget")
            if self.chunking == "tpot" and "slack_share" in self.model_fields_set:
                raise wrong("slack_share without slack", "write `chunking: slack`, or leave it out", "slack_share")
            return self
        for name in sorted(self.model_fields_set - COMMON):
            raise wrong(f"{self.placement} has no {name}", "write `placement: polyserve`, or leave it out", name)
        return self

    def polyserve(self) -> PolyServeSettings | None:
        """Return the settings of PolyServe, None with another placement."""
        if self.placement != POLYSERVE:
            return None
        switches = {
            name: getattr(self, name) for name in PolicyShape.model_fields if name not in COMMON | {"autoscale"}
        }
        return PolyServeSettings(**switches, unlimited=self.autoscale == "unlimited")


class Objective(StrictModel):
    """A load counts as carried with this attainment; with `every_tier` each tier needs it."""

    attainment: Annotated[Fraction, BeforeValidator(_share)]
    every_tier: bool = False


class ScenarioShape(StrictModel):
    """A scenario with the values of one run."""

    version: Literal[1]
    profile: Name
    fleet: FleetShape
    workload: WorkloadShape
    policy: PolicyShape = PolicyShape()
    objective: Objective | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run; `file` is its file, for errors, and `inputs` are the other files that it reads.

    `is_split`: the closed form chooses how many instances of the fleet prefill.
    """

    file: YamlFile
    profile: Profile
    fleet: Fleet
    is_split: bool
    workload: WorkloadSpec
    policy: PolicyShape
    objective: Objective | None
    inputs: tuple[Path, ...]


def scenario_of(file: YamlFile, read: Callable[[Path], Trace]) -> Scenario:
    """Build the scenario of a file without a sweep; paths are relative to the file. `read` reads a trace.

    Raises:
        ConfigError: the file, its profile or a trace is refused: file, line, key and remedy.
    """
    try:
        shape = ScenarioShape.model_validate(file.data)
    except ValidationError as error:
        raise config_errors(file, error)[0] from None
    folder = Path(file.file).parent
    name = shape.profile
    is_shipped = name in shipped_profiles()
    work = shape.workload
    try:
        profile = load_profile(name, folder)
    except UnreadableConfigError as error:
        raise file.refuse_file(("profile",), error) from error
    traces = partial(_trace, file, read)
    inputs, outputs = _lengths(work.lengths, traces)
    arrivals = _arrivals(work.arrivals, traces)
    if isinstance(arrivals, TraceArrivals) and (work.requests or 0) > len(arrivals.trace):
        rows = len(arrivals.trace)
        raise file.refuse(("workload", "requests"), f"the trace has {rows} rows", f"write at most {rows}")
    if shape.policy.polyserve() is not None and not work.tiers:
        raise file.refuse(
            ("policy", "placement"), "polyserve without tiers", "write workload.tiers, or choose another placement"
        )
    least = inputs.least + outputs.least
    if least > profile.kv_tokens:
        message = f"a request has {least} tokens or more, and the KV of an instance holds {profile.kv_tokens}"
        raise file.refuse(("workload", "lengths"), message, "shorten the lengths, or choose another profile")
    return Scenario(
        file=file,
        profile=profile,
        fleet=shape.fleet.build(),
        is_split=shape.fleet.prefill == "auto",
        workload=WorkloadSpec(
            arrivals,
            inputs,
            outputs,
            work.requests,
            tuple(tier.build() for tier in work.tiers),
            feasible=work.feasible,
            warmup_ns=work.warmup,
            expected_output=work.expected_output,
        ),
        policy=shape.policy,
        objective=shape.objective,
        inputs=tuple(folder / one for one in (None if is_shipped else name, *_traces(work)) if one is not None),
    )


def _traces(work: WorkloadShape) -> list[str | None]:
    sides = (work.lengths.input, work.lengths.output)
    return [work.arrivals.trace, work.lengths.trace, *(None if side is None else side.trace for side in sides)]


def _trace(file: YamlFile, read: Callable[[Path], Trace], key: KeyPath, name: str) -> Trace:
    try:
        return read(Path(file.file).parent / name)
    except UnreadableConfigError as error:
        raise file.refuse_file(key, error) from error


def _arrivals(shape: ArrivalsShape, traces: Traces) -> ArrivalProcess:
    if shape.trace is not None:
        return TraceArrivals(traces(("workload", "arrivals", "trace"), shape.trace), shape.speed)
    if shape.constant is not None:
        return ConstantArrivals(shape.constant)
    if shape.gamma is not None and shape.cv is not None:
        return GammaArrivals(shape.gamma, shape.cv)
    assert shape.poisson is not None  # noqa: S101 - the schema has one kind
    return PoissonArrivals(shape.poisson)


def _lengths(shape: LengthsShape, traces: Traces) -> tuple[LengthDistribution, LengthDistribution]:
    if shape.trace is not None:
        read = traces(("workload", "lengths", "trace"), shape.trace)
        return TraceLengths(read.input), TraceLengths(read.output)
    assert shape.input is not None  # noqa: S101 - the schema has both
    assert shape.output is not None  # noqa: S101
    return _length(shape.input, traces, "input"), _length(shape.output, traces, "output")


def _length(shape: LengthShape, traces: Traces, side: str) -> LengthDistribution:
    if shape.uniform is not None:
        return UniformLengths(*shape.uniform)
    if shape.fixed is not None:
        return FixedLength(shape.fixed)
    if shape.percentiles is not None:
        return PercentileLengths(shape.percentiles)
    assert shape.trace is not None  # noqa: S101 - the schema has one kind
    read = traces(("workload", "lengths", side, "trace"), shape.trace)
    return TraceLengths(read.input if side == "input" else read.output)
