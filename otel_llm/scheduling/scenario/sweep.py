"""The runs of a scenario file: its sweep's combinations, with the settings of the command line over the file's."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any, Final

from otel_llm.config.yaml_file import ConfigError, Mark, did_you_mean, dotted, load_yaml, parse_yaml
from otel_llm.scheduling.scenario.scenario import Scenario, scenario_of
from otel_llm.scheduling.workload.trace_file import read_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from otel_llm.config.yaml_file import YamlFile
    from otel_llm.scheduling.workload.trace_file import Trace

LOADS: Final = ("workload.arrivals.poisson", "workload.arrivals.constant", "workload.arrivals.gamma")
"""Settings that are a load in requests/s."""
MOST_RUNS: Final = 10_000
_KEYS: Final = ("profile", "fleet", "workload", "policy", "objective")


@dataclass(frozen=True, slots=True)
class Setting:
    """A value over that of the file: `mark` is its position in the file, None for one of the command line."""

    path: tuple[str, ...]
    value: Any
    mark: Mark | None = None


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A run: the settings of the sweep, and the scenario with them."""

    settings: dict[str, Any]
    scenario: Scenario


def load_runs(path: Path | str, settings: Sequence[str] = ()) -> list[PlannedRun]:
    """Read a scenario file and plan its runs in the order of the sweep, whose last key varies first.

    `settings`: `KEY=VALUE` as the command line has them, KEY dotted, VALUE in YAML; one that is in the sweep replaces
    its values.

    Raises:
        ConfigError: the file or a setting is refused: where, key and remedy.
    """
    file = load_yaml(path, number_keys=True)
    over = [_parsed(text) for text in settings]
    axes = [axis for axis in _axes(file) if axis[0].path not in {one.path for one in over}]
    count = 1
    for axis in axes:
        count *= len(axis)
    if count > MOST_RUNS:
        raise file.refuse(("sweep",), f"{count} runs", f"a sweep has at most {MOST_RUNS}")
    runs = []
    read = lru_cache(maxsize=8)(read_trace)  # the runs ask for the same file many times
    for chosen in product(*axes):
        scenario = _scenario(file, (*over, *chosen), read)
        runs.append(PlannedRun({dotted(one.path): one.value for one in chosen}, scenario))
    return runs


def _scenario(file: YamlFile, settings: Sequence[Setting], read: Callable[[Path], Trace]) -> Scenario:
    data = deepcopy(file.data)
    data.pop("sweep", None)
    values, keys = dict(file.values), dict(file.keys)
    for setting in settings:
        inner = data
        for part in setting.path[:-1]:
            inner = inner.setdefault(part, {})
            if not isinstance(inner, dict):
                raise _of_setting(file, setting, f"{part} is no mapping", "name a key below a mapping")
        inner[setting.path[-1]] = setting.value
        if setting.mark is not None:
            values[setting.path] = keys[setting.path] = setting.mark
    try:
        return scenario_of(replace(file, data=data, values=values, keys=keys), read)
    except ConfigError as error:
        for setting in settings:
            if setting.mark is None and error.file == file.file and _is_below(error.key, dotted(setting.path)):
                raise _of_setting(file, setting, error.message, error.advice) from None
        raise


def _of_setting(file: YamlFile, setting: Setting, message: str, advice: str) -> ConfigError:
    name = dotted(setting.path)
    if setting.mark is None:
        return ConfigError("--set", None, None, name, message, advice)
    return ConfigError(file.file, setting.mark.line, setting.mark.column, name, message, advice)


def _is_below(key: str, name: str) -> bool:
    return key == name or key.startswith((f"{name}.", f"{name}["))


def _parsed(text: str) -> Setting:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError("--set", None, None, text, "no value", "write KEY=VALUE, as workload.requests=2000")
    try:
        read = parse_yaml(f"version: 1\nvalue: {value}\n".encode(), "--set", number_keys=True).data.get("value")
    except ConfigError as error:
        raise ConfigError("--set", None, None, key, error.message, error.advice) from None
    return Setting(_path(key, ConfigError("--set", None, None, key, "unknown key", _advice(key))), read)


def _axes(file: YamlFile) -> list[list[Setting]]:
    sweep = file.data.get("sweep", {})
    if not isinstance(sweep, dict):
        raise file.refuse(("sweep",), "not a mapping", "write {workload.arrivals.poisson: [10, 20, 40]}")
    axes = []
    for key, levels in sweep.items():
        where = ("sweep", key)
        path = _path(key, file.refuse(where, "unknown key", _advice(key), at_key=True))
        if not isinstance(levels, list) or not levels:
            raise file.refuse(where, "not a list of values", "write for example [10, 20, 40]")
        for index, level in enumerate(levels):
            if level in levels[:index]:
                raise file.refuse((*where, index), f"{level!r} stands here twice", "leave one out")
        axes.append([Setting(path, level, file.value_mark((*where, place))) for place, level in enumerate(levels)])
    return axes


def _path(key: str, refused: ConfigError) -> tuple[str, ...]:
    parts = tuple(key.split("."))
    if parts[0] not in _KEYS or not all(parts):
        raise refused
    return parts


def _advice(key: str) -> str:
    return did_you_mean(key.partition(".")[0], _KEYS)
