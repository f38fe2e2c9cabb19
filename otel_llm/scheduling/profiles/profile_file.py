"""Load a profile: one that ships, by its name, or a file."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BeforeValidator, ValidationError

from otel_llm.config.durations import LONGEST_NS, exact
from otel_llm.config.sniff import other_kind
from otel_llm.config.strict_model import StrictModel, config_errors, quoted, wrong
from otel_llm.config.yaml_file import UnreadableConfigError, did_you_mean, load_yaml
from otel_llm.scheduling.profiles.profile import LinearProfile, Terms
from otel_llm.scheduling.profiles.table import TableProfile, read_grid

if TYPE_CHECKING:
    from otel_llm.scheduling.profiles.profile import Profile

SHIPPED: Final = Path(__file__).parent / "shipped"
MOST: Final = 10**12
"""The largest size in tokens or requests."""
_SUFFIXES: Final = (".yaml", ".yml")
_UNITS_NS: Final = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
_DURATION: Final = re.compile(r"(?P<number>[0-9]{1,20}(\.[0-9]{1,20})?)(?P<unit>ns|us|ms|s|m|h)")


def load_profile(name_or_path: str | Path, folder: Path = Path()) -> Profile:
    """Load a profile by the name of one that ships, or from its YAML file, whose path is relative to a folder.

    Raises:
        ConfigError: the file, or its table, is refused: file, line, key and remedy.
        UnreadableConfigError: there is no such profile, or it cannot be read.
    """
    shipped = shipped_profiles()
    if str(name_or_path) in shipped:
        return _load(SHIPPED / f"{name_or_path}.yaml")
    path = folder / name_or_path
    if path.name == str(name_or_path) and path.suffix not in _SUFFIXES and not path.exists():
        advice = f"{did_you_mean(path.name, shipped)}; or name a file as ./{path.name}.yaml"
        raise UnreadableConfigError(path.name, None, None, "", "no profile that ships has this name", advice)
    return _load(path)


def shipped_profiles() -> tuple[str, ...]:
    """Return the names of the profiles that ship, sorted."""
    return tuple(sorted(path.stem for path in SHIPPED.glob("*.yaml")))


def exact_duration_ns(value: object) -> Fraction:
    """Return a duration in ns, exactly: `0.76ns 20us 1.75ms 1s 2m 1h` or a number of seconds.

    Raises:
        ValueError: it is none, it is negative, or it is more than 31 years.
    """
    if isinstance(value, str) and (found := _DURATION.fullmatch(value)):
        length_ns = Fraction(found["number"]) * _UNITS_NS[found["unit"]]
    elif isinstance(value, int | float) and not isinstance(value, bool):
        length_ns = exact(value) * _UNITS_NS["s"]
    elif isinstance(value, str) and _DURATION.fullmatch(value.removeprefix("-")):
        length_ns = Fraction(-1)
    else:
        raise ValueError(f"{quoted(value)} is no duration")
    if length_ns < 0:
        raise ValueError(f"a duration is not negative, {quoted(value)} is")
    if length_ns > LONGEST_NS:
        raise ValueError(f"{quoted(value)} is more than {LONGEST_NS // _UNITS_NS['s']} seconds")
    return length_ns


def rounded_ns(length_ns: Fraction) -> int:
    """Round to the ns, half up."""
    return math.floor(length_ns + Fraction(1, 2))


def _exact(value: object) -> Fraction:
    try:
        return exact_duration_ns(value)
    except ValueError as error:
        raise wrong(str(error), "write 0.76ns, 20us, 1.75ms, 1s or a number of seconds") from None


def _overhead(value: object) -> int:
    return rounded_ns(_exact(value))


def _floor(value: object) -> int:
    floor_ns = rounded_ns(_exact(value))
    if not floor_ns:
        raise wrong("an iteration lasts at least 1 ns", "write 1ns or more, or leave it out")
    return floor_ns


def _size(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST:
        raise wrong(f"{quoted(value)} is no such number", f"write a whole number from 1 to {MOST}")
    return value


def _table(value: object) -> str:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise wrong(f"{quoted(value)} is no name of a file", "name a CSV file beside this one")
    return value


_Exact = Annotated[Fraction, BeforeValidator(_exact)]
_Overhead = Annotated[int, BeforeValidator(_overhead)]
_Size = Annotated[int, BeforeValidator(_size)]


class _Linear(StrictModel):
    base: _Exact = Fraction(0)
    per_decode: _Exact = Fraction(0)
    per_kv_token: _Exact = Fraction(0)
    per_chunk_token: _Exact = Fraction(0)
    per_chunk_kv: _Exact = Fraction(0)
    floor: Annotated[int, BeforeValidator(_floor)] = 1

    def terms(self) -> Terms:
        """Return the coefficients."""
        return Terms(self.base, self.per_decode, self.per_kv_token, self.per_chunk_token, self.per_chunk_kv, self.floor)


class _File(StrictModel):
    version: Literal[1]
    model: str
    accelerator: str
    engine: str
    tensor_parallel: _Size = 1
    kv_tokens: _Size
    max_batch: _Size
    max_batched_tokens: _Size
    step_overhead: _Overhead = 0
    request_overhead: _Overhead = 0
    source: str
    table: Annotated[str | None, BeforeValidator(_table)] = None
    linear: _Linear | None = None


def _load(path: Path) -> Profile:
    file = load_yaml(path)
    other = other_kind(file, _File.model_fields.keys() - {"version"}, "profile")
    if other is not None:
        raise other
    try:
        read = _File.model_validate(file.data)
    except ValidationError as error:
        raise config_errors(file, error)[0] from error
    if read.table is not None and read.linear is not None:
        raise file.refuse(("linear",), "beside a table", "keep one of table and linear", at_key=True)
    facts: dict[str, Any] = {
        "name": path.stem,
        "model": read.model,
        "accelerator": read.accelerator,
        "engine": read.engine,
        "tensor_parallel": read.tensor_parallel,
        "source": read.source,
        "kv_tokens": read.kv_tokens,
        "max_batch": read.max_batch,
        "max_batched_tokens": read.max_batched_tokens,
        "step_overhead_ns": read.step_overhead,
        "request_overhead_ns": read.request_overhead,
    }
    if read.linear is not None:
        return LinearProfile(terms=read.linear.terms(), **facts)
    if read.table is None:
        raise file.refuse((), "neither table nor linear", "write `table: NAME.csv` or `linear: {base: ...}`")
    return TableProfile(grid=read_grid(path.parent / read.table), **facts)
