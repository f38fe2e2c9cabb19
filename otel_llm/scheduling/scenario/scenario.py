"""A scenario: profile, fleet, workload, policy; read from the data of a file with the settings of one run."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from otel_llm.config.strict_model import config_errors
from otel_llm.config.yaml_file import UnreadableConfigError
from otel_llm.scheduling.profiles.profile_file import load_profile, shipped_profiles
from otel_llm.scheduling.scenario.schema import ScenarioShape
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
from otel_llm.scheduling.workload.workload import WorkloadSpec

if TYPE_CHECKING:
    from collections.abc import Callable
    from fractions import Fraction

    from otel_llm.config.yaml_file import KeyPath, YamlFile
    from otel_llm.scheduling.profiles.profile import Profile
    from otel_llm.scheduling.scenario.schema import (
        ArrivalsShape,
        LengthShape,
        LengthsShape,
        PolicyShape,
        WorkloadShape,
    )
    from otel_llm.scheduling.simulator.engine import Fleet
    from otel_llm.scheduling.workload.trace_file import Trace

    # Reads the trace that a key of the scenario names.
    Traces = Callable[[KeyPath, str], Trace]


@dataclass(frozen=True, slots=True)
class Objective:
    """A load counts as carried with this attainment; with `every_tier` each tier needs it."""

    attainment: Fraction
    every_tier: bool


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
        objective=None
        if shape.objective is None
        else Objective(shape.objective.attainment, every_tier=shape.objective.every_tier),
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
