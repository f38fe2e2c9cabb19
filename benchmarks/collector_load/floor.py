"""The floor: the standard parse of the same bytes and reading every event's time, on one thread, nothing else."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from typing import TYPE_CHECKING

from collector_load.fleet import read_exports
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from pathlib import Path

PASSES = 5


def floor_cpu_s(path: Path) -> float:
    """Return the CPU seconds that a process of its own needs for a file of exports: the median of a few passes."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_main, args=(theirs, path), daemon=True)
    process.start()
    taken = ours.recv()
    process.join()
    return float(taken)


def _main(pipe: Connection, path: Path) -> None:
    exports = [raw for _, _, raw in read_exports(path)]
    pipe.send(statistics.median(_pass(exports) for _ in range(PASSES)))


def _pass(exports: list[bytes]) -> float:
    began = time.process_time()
    for raw in exports:
        for resource in ExportTraceServiceRequest.FromString(raw).resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    [event.time_unix_nano for event in span.events]
    return time.process_time() - began
