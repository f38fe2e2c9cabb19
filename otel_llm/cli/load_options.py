"""What `bench` and `capacity` share: their options, the errors of a load, and its end by Ctrl-C."""

from __future__ import annotations

import platform
import signal
from contextlib import contextmanager
from fractions import Fraction
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from otel_llm.bench.client.learning import LearningError
from otel_llm.bench.client.target import TargetError
from otel_llm.bench.client.workers import WorkerDiedError
from otel_llm.bench.load_settings import LoadSettings
from otel_llm.bench.plan.load_plan import PlanError
from otel_llm.bench.recording.run_folder import check_folder
from otel_llm.cli.option_types import Duration
from otel_llm.config.durations import exact
from otel_llm.config.errors import StartError
from otel_llm.config.yaml_file import ConfigError
from otel_llm.export.records import version
from otel_llm.shared.clock import wall_ns
from otel_llm.shared.outputs import OutputError, check_output_path
from otel_llm.slo.classes import UnknownClassError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from otel_llm.bench.plan.prompts import PromptSpec


@contextmanager
def interrupts() -> Iterator[list[int]]:
    """Give the list of the signals that ask for an end; the second Ctrl-C raises KeyboardInterrupt."""
    came: list[int] = []

    def note(signum: int, _frame: object) -> None:
        came.append(signum)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = {signum: signal.signal(signum, note) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


REFUSED = (
    ConfigError, LearningError, OutputError, PlanError, StartError, TargetError, UnknownClassError, WorkerDiedError,
)  # fmt: skip


@contextmanager
def refusing() -> Iterator[None]:
    """Turn what a load cannot be run with into bad usage, exit code 2."""
    try:
        yield
    except REFUSED as error:
        raise click.UsageError(str(error)) from error


def check_outputs(out: Path | None, html: Path | None) -> None:
    """Refuse outputs that cannot be written. Raises OutputError."""
    if out is not None:
        check_folder(out)
    if html is not None:
        if html.suffix.lower() != ".html":
            raise OutputError(f"{html}: the page is HTML; name a file that ends with .html")
        check_output_path(html)


def about_run(
    command: str,
    load: LoadSettings,
    spec: PromptSpec,
    slo: Path | None,
    class_name: str | None,
    settings: Mapping[str, object],
) -> dict[str, Any]:
    """Return what `run.json` says to run a load again; `settings`: more of them, beside or instead of the load's."""
    judging = {"slo": None if slo is None else str(slo), "class": class_name}
    return {
        "command": command,
        "versions": {"otel-llm": version(), "python": platform.python_version(), "system": platform.platform()},
        "started_unix_nano": wall_ns(),
        "settings": load.as_json() | judging | dict(settings),
        "prompts": {"salt": spec.salt, "tokens_fixed": spec.lengths.fixed, "tokens_per_word": spec.lengths.per_word},
    }


MOST_WORKERS: Final = 256
MOST_SPEED: Final = 1_000_000


class Header(click.ParamType[tuple[str, str]]):
    """A header `K=V`."""

    name = "header"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Return name and value."""
        if isinstance(value, tuple):
            return value
        name, equals, text = str(value).partition("=")
        if not equals or not name:
            self.fail(f"{value!r}: write a header as x-team=chat", param, ctx)
        return name, text


class Speed(click.ParamType[Fraction]):
    """A factor above zero."""

    name = "speed"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Fraction:
        """Return it exactly."""
        try:
            speed = value if isinstance(value, Fraction) else exact(float(str(value)))
        except ValueError:
            speed = Fraction(0)
        if not 0 < speed <= MOST_SPEED:
            self.fail(f"{value!r} is no factor above zero, as 2.0", param, ctx)
        return speed


_FILE: Final = click.Path(path_type=Path)
_OPTIONS: Final = (
    click.option("--model", required=True, metavar="M", help="The model, as the server calls it."),
    click.option(
        "--rate", metavar="N", help="Requests a second, sent whether the server is ready or not. [default: 1]"
    ),
    click.option(
        "--concurrency",
        type=click.IntRange(1, 100_000),
        metavar="N",
        help="A closed loop instead: N requests in flight, each sent when another has ended.",
    ),
    click.option(
        "--trace",
        type=_FILE,
        metavar="FILE",
        help="Replay arrivals and lengths of Azure's CSV or Mooncake's JSON lines.",
    ),
    click.option("--speed", type=Speed(), default="1.0", show_default=True, help="Replay a trace so much faster."),
    click.option(
        "--arrivals", default="poisson", show_default=True, metavar="KIND", help="poisson, constant or gamma:CV."
    ),
    click.option("--duration", "duration_ns", type=Duration(), help="How long requests are sent. [default: 60s]"),
    click.option("--requests", type=click.IntRange(1), metavar="N", help="How many are sent, instead."),
    click.option("--input", "input_", metavar="TOKENS", help="Length of prompts: 128, or 64..512. [default: 128]"),
    click.option("--output", metavar="TOKENS", help="Length of replies: 64, or 32..256. [default: 64]"),
    click.option(
        "--shared-prefix",
        type=click.IntRange(0, 10_000_000),
        default=0,
        metavar="TOKENS",
        help="Tokens that all prompts begin with; no two prompts share more.",
    ),
    click.option("--api", type=click.Choice(["chat", "completions"]), default="chat", show_default=True),
    click.option("--header", "headers", type=Header(), multiple=True, metavar="K=V", help="Sent along; repeatable."),
    click.option("--api-key-file", type=_FILE, metavar="F", help="File with the key, sent as a bearer token."),
    click.option(
        "--workers",
        type=click.IntRange(1, MOST_WORKERS),
        default=1,
        show_default=True,
        metavar="N",
        help="Processes that send and read, each of one core.",
    ),
    click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, metavar="N"),
)


_NAMES: Final = (
    "model", "rate", "concurrency", "trace", "speed", "arrivals", "duration_ns", "requests", "input_", "output",
    "shared_prefix", "api", "headers", "api_key_file", "workers", "seed",
)  # fmt: skip
"""The arguments of `_OPTIONS`, in their order."""
_OF_ONE_RUN: Final = frozenset({"model", "rate", "concurrency", "trace", "speed", "duration_ns", "requests"})
"""Those that a search sets itself, or has with another meaning."""


_JUDGING: Final = (
    click.option("--slo", type=_FILE, metavar="F", help="SLO classes; the shipped ones where not given."),
    click.option("--class", "class_name", metavar="NAME", help="The class of all requests."),
)


def judging_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add what the replies are judged by, `slo` and `class_name`."""
    for option in reversed(_JUDGING):
        command = option(command)
    return command


def load_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options, which the command gets as one argument, `load`; its first argument is `url`."""
    return _collected(command, _NAMES)


def probe_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a load whose rate a search sets; `load` has an empty URL and model if none is given."""
    names = tuple(name for name in _NAMES if name not in _OF_ONE_RUN)
    model = click.option("--model", metavar="M", default="", help="The model, as the server calls it.")
    trace = click.option(
        "--trace", type=_FILE, metavar="FILE", help="Draw lengths from Azure's CSV or Mooncake's JSON lines."
    )
    return model(trace(_collected(command, names, "model", "trace")))


def _collected(command: Callable[..., None], names: tuple[str, ...], *others: str) -> Callable[..., None]:
    @wraps(command)
    def collected(**arguments: Any) -> None:
        given = {name: arguments.pop(name) for name in ("url", *names, *others)}
        command(load=LoadSettings(input=given.pop("input_"), **given), **arguments)

    for name, option in reversed(list(zip(_NAMES, _OPTIONS, strict=True))):
        if name in names:
            collected = option(collected)
    return collected
