"""The settings of a load: what the options of `bench` and `capacity` say, checked, and what `run.json` keeps."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

from otel_llm.bench.client.target import Target
from otel_llm.bench.plan.load_plan import LoadShape, PlanError
from otel_llm.config.durations import exact
from otel_llm.config.secret_files import read_bearer
from otel_llm.scheduling.workload.arrivals import ConstantArrivals, GammaArrivals, PoissonArrivals, TraceArrivals
from otel_llm.scheduling.workload.lengths import FixedLength, TraceLengths, UniformLengths
from otel_llm.scheduling.workload.trace_file import read_trace

if TYPE_CHECKING:
    from pathlib import Path

    from otel_llm.bench.client.target import ApiName
    from otel_llm.scheduling.workload.lengths import LengthDistribution


MOST_LENGTH: Final = 10_000_000
MOST_RATE: Final = Fraction(1_000_000)
MOST_CV: Final = 100.0
_LENGTH_ADVICE: Final = "write a number of tokens as 128, or a range as 64..512"
_ARRIVALS_ADVICE: Final = "write poisson, constant or gamma:2.5"


def rate_of(text: str) -> Fraction:
    """Return a rate in requests/s, exactly. Raises PlanError."""
    try:
        rate = exact(float(text))
    except ValueError:
        rate = Fraction(0)
    if not 0 < rate <= MOST_RATE:
        raise PlanError(f"--rate {text!r}: write requests a second, above 0 and up to {int(MOST_RATE):,}")
    return rate


def arrivals_of(text: str, rate: Fraction) -> ConstantArrivals | PoissonArrivals | GammaArrivals:
    """Return the arrivals at a rate: `poisson`, `constant` or `gamma:CV`. Raises PlanError."""
    if text == "poisson":
        return PoissonArrivals(rate)
    if text == "constant":
        return ConstantArrivals(rate)
    kind, _, number = text.partition(":")
    try:
        cv = float(number) if kind == "gamma" else 0.0
    except ValueError:
        cv = 0.0
    if not 0 < cv <= MOST_CV:
        raise PlanError(f"--arrivals {text!r}: {_ARRIVALS_ADVICE}, its coefficient of variation up to {MOST_CV:g}")
    return GammaArrivals(rate, cv)


def lengths_of(option: str, text: str) -> LengthDistribution:
    """Return the lengths of an option: a number of tokens, or a range with both ends included. Raises PlanError."""
    first, dots, last = text.partition("..")
    try:
        low, high = int(first), int(last if dots else first)
    except ValueError:
        raise PlanError(f"{option} {text!r}: {_LENGTH_ADVICE}") from None
    if not 1 <= low <= high <= MOST_LENGTH:
        raise PlanError(f"{option} {text!r}: lengths rise and are from 1 to {MOST_LENGTH:,} tokens; {_LENGTH_ADVICE}")
    return UniformLengths(low, high) if dots else FixedLength(low)


RATE: Final = "1"
ARRIVALS: Final = "poisson"
DURATION_NS: Final = 60 * 10**9
INPUT: Final = "128"
OUTPUT: Final = "64"


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """The options of a load, as they were given; None if one was not.

    `rate`, `concurrency` and `trace` exclude each other; so do `duration_ns` and `requests`.
    """

    url: str
    model: str
    api: ApiName = "chat"
    rate: str | None = None
    concurrency: int | None = None
    trace: Path | None = None
    speed: Fraction = Fraction(1)
    arrivals: str = ARRIVALS
    duration_ns: int | None = None
    requests: int | None = None
    input: str | None = None
    output: str | None = None
    shared_prefix: int = 0
    headers: tuple[tuple[str, str], ...] = ()
    api_key_file: Path | None = None
    workers: int = 1
    seed: int = 0

    def check(self) -> None:
        """Refuse options that exclude each other. Raises PlanError."""
        for names in (("rate", "concurrency", "trace"), ("duration_ns", "requests")):
            given = [_option(name) for name in names if getattr(self, name) is not None]
            if len(given) > 1:
                raise PlanError(f"{' and '.join(given)} exclude each other: keep one")
        if self.speed != 1 and self.trace is None:
            raise PlanError("--speed is of a replay: add --trace FILE")
        if self.arrivals != ARRIVALS and (self.trace is not None or self.concurrency is not None):
            other = "--trace has arrivals of its own" if self.trace is not None else "--concurrency has none"
            raise PlanError(f"--arrivals {self.arrivals}: {other}")
        if self.concurrency is not None and self.workers > self.concurrency:
            raise PlanError(f"--workers {self.workers}: more than --concurrency {self.concurrency}")

    def target(self) -> Target:
        """Return the server.

        Raises:
            TargetError: the URL or a header cannot be used.
            ConfigError: the key file cannot be used.
        """
        key = None if self.api_key_file is None else read_bearer(self.api_key_file)
        return Target.read(self.url, model=self.model, api=self.api, headers=self.headers, key=key)

    @property
    def length_ns(self) -> int | None:
        """Return how long the load is sent; None if a number of requests or a trace ends it."""
        if self.duration_ns is None and self.requests is None and self.trace is None:
            return DURATION_NS
        return self.duration_ns

    def shape(self, rate: Fraction | None = None) -> LoadShape:
        """Return what the plan is drawn from; `rate` replaces that of the options, and the times of a trace.

        Raises:
            PlanError: an option is malformed.
            ConfigError: the trace cannot be read.
        """
        if rate is None:
            self.check()
        trace = None if self.trace is None else read_trace(self.trace)
        lengths: list[LengthDistribution] = []
        for option, text, default, column in (
            ("--input", self.input, INPUT, None if trace is None else trace.input),
            ("--output", self.output, OUTPUT, None if trace is None else trace.output),
        ):
            replayed = text is None and column is not None
            lengths.append(TraceLengths(column) if replayed else lengths_of(option, default if text is None else text))  # type: ignore[arg-type]
        if trace is not None and rate is None:
            arrivals: Any = TraceArrivals(trace, self.speed)
        elif self.concurrency is not None and rate is None:
            arrivals = None
        else:
            own_rate = RATE if self.rate is None else self.rate
            arrivals = arrivals_of(self.arrivals, rate_of(own_rate) if rate is None else rate)
        return LoadShape(arrivals, lengths[0], lengths[1], self.requests, self.length_ns)

    def as_json(self) -> dict[str, Any]:
        """Return the settings for `run.json`; the key's file is named, the key is not."""
        return {
            "url": self.url,
            "model": self.model,
            "api": self.api,
            "rate": self.rate if self.rate or self.concurrency or self.trace else RATE,
            "concurrency": self.concurrency,
            "trace": None if self.trace is None else str(self.trace),
            "speed": float(self.speed),
            "arrivals": self.arrivals,
            "duration_s": None if self.length_ns is None else self.length_ns / 1e9,
            "requests": self.requests,
            "input": self.input if self.input or self.trace else INPUT,
            "output": self.output if self.output or self.trace else OUTPUT,
            "shared_prefix": self.shared_prefix,
            "headers": [name for name, _ in self.headers],
            "api_key_file": None if self.api_key_file is None else str(self.api_key_file),
            "workers": self.workers,
            "seed": self.seed,
        }


def _option(name: str) -> str:
    return f"--{name.removesuffix('_ns')}"
