"""Write the token times of runs as recordings, which the audit judges to the same attainment."""

from __future__ import annotations

import contextlib
import json
from decimal import Decimal
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from otel_llm.audit.input.parquet_streams import Writer
from otel_llm.audit.input.stream_batch import BATCH_TOKENS, STREAMS, lists
from otel_llm.formats.records import DEFAULT_TENANT
from otel_llm.scheduling.scenario.figures import blocks_of, judged_requests
from otel_llm.scheduling.workload.tiers import duration_text, tier_classes
from otel_llm.scheduling.workload.workload import DEFAULT_CLASS
from otel_llm.shared.outputs import OutputError, replacing

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from otel_llm.scheduling.scenario.sweep import PlannedRun
    from otel_llm.scheduling.simulator.engine import SimulatedRun
    from otel_llm.scheduling.simulator.simulated_request import SimulatedRequest
    from otel_llm.scheduling.workload.workload import Workload

SLO_FILE: Final = "slo.yaml"


def prepare_folder(folder: Path, runs: Sequence[PlannedRun]) -> None:
    """Make the folder of recordings and write its SLO file, with the classes of all runs.

    Raises:
        OutputError: it is no folder, it holds an SLO file of something else, or runs differ in a class of one name.
    """
    promises: dict[str, dict[str, str]] = {}
    for run in runs:
        tiers = run.scenario.workload.tiers
        found = {
            one.slo.name: {
                "policy": "dslo",
                "ttft": _in_file(one.slo.deadline.first_ns),
                "tpot": _in_file(one.slo.deadline.next_ns or 0),
            }
            for one in tier_classes(tiers)
        } or {DEFAULT_CLASS: {}}
        for name, deadline in found.items():
            if promises.setdefault(name, deadline) != deadline:
                raise OutputError(f"the runs differ in the class {name!r}; simulate them one by one, into own folders")
    lines = [
        f"  {json.dumps(name)}: {json.dumps({'deadline': deadline} if deadline else {})}"
        for name, deadline in promises.items()
    ]
    text = "\n".join(["version: 1", f"default: {json.dumps(next(iter(promises)))}", "classes:", *lines, ""])
    path = folder / SLO_FILE
    try:
        folder.mkdir(exist_ok=True)
        if path.exists() and not recording(folder, 0).exists() and path.read_text(encoding="utf-8") != text:
            raise OutputError(f"{path} is not of a simulation and would be overwritten; name another folder")
    except OSError as error:
        raise OutputError(f"{folder}: {error.strerror or error}; name a folder, or one to make") from error
    with replacing(path) as file:
        file.write(text.encode())


def _in_file(length_ns: int) -> str:
    """Return a duration exactly, as SLO files write it: their smallest unit is the microsecond."""
    return duration_text(length_ns) if length_ns % 1000 == 0 else f"{Decimal(length_ns).scaleb(-3):f}us"


def recording(folder: Path, place: int) -> Path:
    """Return the file of a run, by its place in the sweep."""
    return folder / f"run-{place}.parquet"


def write_streams(
    path: Path, run: SimulatedRun, workload: Workload, model: str, block_tokens: int = BATCH_TOKENS
) -> None:
    """Write the judged requests of a run by number; the commit is the arrival, in ns from the start of the run.

    Raises:
        OutputError: it cannot be written.
    """
    with replacing(path) as file, contextlib.closing(Writer(file)) as writer:
        for block in blocks_of(judged_requests(run, workload), block_tokens):
            writer.write(_batch(run, workload, model, block))


def _batch(run: SimulatedRun, workload: Workload, model: str, requests: Sequence[SimulatedRequest]) -> pa.RecordBatch:
    count = len(requests)
    times = [run.token_times(one) for one in requests]
    lengths = np.array([len(one) for one in times], np.int64)
    cells = {
        "trace_id": [(one.number + 1).to_bytes(16) for one in requests],
        "span_id": [(one.number + 1).to_bytes(8) for one in requests],
        "tenant": [DEFAULT_TENANT] * count,
        "choice": [0] * count,
        "declared_class": [workload.classes[one.tier].slo.name for one in requests],
        "model": [model] * count,
        "instance": [str(one.runs[-1].instance) if one.runs else None for one in requests],
        "measured_at": ["server"] * count,
        "outcome": ["error" if one.dropped else "completed" for one in requests],
        "commit_ns": [one.arrival_ns for one in requests],
        "end_ns": [one.end_ns for one in requests],
        "coverage": [1.0] * count,
        "complete": [True] * count,
        "known_tokens": lengths,
        "input_tokens": [one.input for one in requests],
        "exact_resume": [False] * count,
        "foreign": [False] * count,
    }
    columns = [
        lists(np.concatenate(times), np.concatenate([[0], np.cumsum(lengths)]))
        if item.name == "times_ns"
        else pa.array(cells.get(item.name, [None] * count), item.type)
        for item in STREAMS
    ]
    return pa.RecordBatch.from_arrays(columns, schema=STREAMS)
