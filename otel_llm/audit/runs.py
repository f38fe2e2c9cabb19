"""Several runs side by side: each recording is audited by itself, with its own span and rates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from otel_llm.audit.input.load_inputs import SeveralRunsError
from otel_llm.audit.input.runs import run_name
from otel_llm.audit.load import load
from otel_llm.formats.input_paths import input_files
from otel_llm.formats.io.bytestream import STDIN
from otel_llm.formats.io.journal_format import is_journal
from otel_llm.formats.io.skipped import Skipped
from otel_llm.formats.records import InputError
from otel_llm.slo.figures import CLASSES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from otel_llm.audit.result import Audit

COLUMNS: Final = ("run", "load_req_s", *CLASSES)
"""The columns of `Run.rows`."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run: its name, the load that its file states, requests/s (None if it states none), and its audit."""

    name: str
    load_req_s: float | None
    audit: Audit

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Return a row of COLUMNS for each class and measured_at."""
        about = {"run": self.name, "load_req_s": self.load_req_s}
        return [
            {**about, "slo_class": name, "measured_at": place, **figures}
            for name, places in self.audit.summary()["classes"].items()
            for place, figures in places.items()
        ]

    def summary(self) -> dict[str, Any]:
        """Return the summary of its audit, with its name and load."""
        return {"run": self.name, "load_req_s": self.load_req_s, **self.audit.summary()}


def runs(paths: Sequence[Path], **how: Any) -> Iterator[Run]:
    """Yield the audit of each run of `paths`, with the arguments `how` of `load`, whose errors it raises.

    A file is a run, or has several; a folder of journals is one; a pattern and any other folder stand for their files.
    A file of several runs is read once to find them, and once for each.
    """
    for path in paths:
        files = input_files([path], Skipped())
        for one in [path] if path.is_dir() and any(map(is_journal, files)) else files:
            yield from _of_one(one, how)


def _of_one(path: Path, how: dict[str, Any]) -> Iterator[Run]:
    try:
        audit = load(path, windows=False, **how)
    except SeveralRunsError as several:
        if path == STDIN:
            raise InputError(f"{several}, or write standard input to a file") from several
        loads = several.loads
    else:
        stated = audit.skipped.runs.get(path, [None])
        yield Run(str(path), stated[0], audit)
        return
    for number, load_req_s in enumerate(loads):
        yield Run(run_name(path, number), load_req_s, load(path, windows=False, run=run_name(path, number), **how))
