"""The runs of a benchmark's result file: each has a load of its own, so each is judged by itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from otel_llm.audit.input.load_inputs import load_streams
from otel_llm.formats.files import read_raw
from otel_llm.formats.input_paths import input_files
from otel_llm.formats.io.skipped import Skipped
from otel_llm.formats.recordings.format_table import format_of
from otel_llm.formats.records import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa


class Run(NamedTuple):
    """One run: its name, its load in requests/s if the file states one, and its streams as batches of STREAMS."""

    name: str
    load_req_s: float | None
    streams: Iterator[pa.RecordBatch]


def run_name(path: Path, run: int) -> str:
    """Return the name of a run (from 0) of a file of several."""
    return f"{path}#{run + 1}"


def chosen_run(paths: Sequence[Path], run: int | str) -> tuple[Path, int]:
    """Return the file and the number (from 0) of a run: `run` is its number from 1, of one file, or its name.

    Raises:
        InputError: it is neither, or as `input_files` does.
    """
    files = input_files(paths, Skipped())
    name, _, number = str(run).rpartition("#")
    if not number.isascii() or not number.isdecimal() or len(number) > 9:
        raise InputError(f"{run!r} names no run: write its number from 1, or FILE#NUMBER")
    if name:
        files = [file for file in files if file == Path(name)]
    if len(files) != 1:
        found = f"{len(files)} files" if files else "no such file"
        raise InputError(f"run {run}: {found} among the paths: name the run as FILE#NUMBER, FILE as it is listed")
    return files[0], int(number) - 1


def load_runs(
    path: Path, load_req_s: float | None = None, progress: Callable[[int], None] | None = None
) -> Iterator[Run]:
    """Yield the runs of a recording; any input but a result file of several runs is one.

    `load_req_s`: the load that the caller states for the whole recording: runs that state one load are then one run. A
    result file is read once to find its runs, and once for each of them.

    Raises:
        InputError: as `load_streams` does; or `load_req_s` is given for a file of several loads; or a folder or a
            pattern has a file of several runs.
    """
    loads = _loads(path)
    if len(loads) > 1 and load_req_s is None:
        for number, stated_req_s in enumerate(loads):
            yield Run(run_name(path, number), stated_req_s, load_streams(path, progress=progress, run=number))
        return
    if len(set(loads)) > 1:
        rates = ", ".join("none" if load is None else f"{load:g}" for load in loads[:8])
        raise InputError(f"{path}: {len(loads)} runs at {rates} requests/s: give the file without a load of yours")
    if load_req_s is None and loads:
        load_req_s = loads[0]
    yield Run(str(path), load_req_s, load_streams(path, progress=progress, single_runs=not loads))


def _loads(path: Path) -> list[float | None]:
    """Return the load that a result file states for each of its runs; nothing for any other input."""
    if not path.is_file():
        return []
    file_format = format_of(path)
    if file_format is None or not file_format.has_runs:
        return []
    skipped = Skipped()
    for _ in read_raw(path, skipped):
        pass
    return skipped.runs.get(path, [])
