"""What `bench` and `capacity` do alike: refuse, check their outputs, say what they ran."""

from __future__ import annotations

import contextlib
import platform
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from otel_llm.bench.client.learning import LearningError
from otel_llm.bench.client.target import TargetError
from otel_llm.bench.client.workers import WorkerDiedError
from otel_llm.bench.plan.load_plan import PlanError
from otel_llm.bench.recording.run_folder import check_folder
from otel_llm.config.errors import StartError
from otel_llm.config.yaml_file import ConfigError
from otel_llm.export.records import version
from otel_llm.shared.clock import wall_ns
from otel_llm.shared.outputs import OutputError, check_output_path
from otel_llm.slo.classes import UnknownClassError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from otel_llm.bench.load_settings import LoadSettings
    from otel_llm.bench.plan.prompts import PromptSpec


@contextlib.contextmanager
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
