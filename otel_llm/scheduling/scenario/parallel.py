"""Run the runs of a sweep, on several processors."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from itertools import islice
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

from otel_llm.scheduling.scenario.running import run_scenario
from otel_llm.scheduling.scenario.sweep import load_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.process import BaseProcess
    from pathlib import Path

    from otel_llm.scheduling.scenario.sweep import PlannedRun


class SweepError(Exception):
    """A sweep cannot go on; the message gives the remedy."""


def run_sweep(
    path: Path,
    settings: Sequence[str],
    runs: Sequence[PlannedRun],
    seed: int,
    jobs: int,
    progress: Callable[[float], None] | None = None,
    streams: Path | None = None,
) -> list[dict[str, Any]]:
    """Return the row of each run that `load_runs` planned for these settings; the rows do not depend on `jobs`.

    With several jobs, each of as many processes reads the file itself. `progress` is called with the runs that are
    done; with one job also in fractions of a run. Into the folder `streams` each run writes its recording.

    Raises:
        ConfigError: a run is refused.
        OutputError: a recording cannot be written.
        SweepError: a process was killed, or has no memory left.
    """
    jobs = min(jobs, len(runs))
    if jobs < 2:
        return [_run(run, index, seed, streams, progress) for index, run in enumerate(runs)]
    rows: dict[int, dict[str, Any]] = {}
    # A started process inherits no threads, such as those of a progress bar. A pool of `concurrent.futures` may wait
    # for ever if a process dies while another one starts; the end of a pipe is always seen.
    context = multiprocessing.get_context("spawn")
    workers: list[BaseProcess] = []
    waiting = iter(range(len(runs)))
    busy: dict[Connection, int] = {}
    try:
        for index in islice(waiting, jobs):
            ours, theirs = context.Pipe()
            worker = context.Process(target=_serve, args=(theirs, path, tuple(settings), seed, streams))
            _start(worker)
            workers.append(worker)
            theirs.close()
            ours.send(index)
            busy[ours] = index
        while busy:
            for connection in wait(list(busy)):
                assert isinstance(connection, Connection)  # noqa: S101 - for the types: only these are waited for
                answer = connection.recv()
                if isinstance(answer, Exception):
                    raise answer
                rows[busy.pop(connection)] = answer
                if progress is not None:
                    progress(len(rows))
                next_place = next(waiting, None)
                if next_place is not None:
                    connection.send(next_place)
                    busy[connection] = next_place
    except (EOFError, BrokenPipeError, ConnectionResetError, MemoryError) as error:
        lost = "has no memory left" if isinstance(error, MemoryError) else "was killed, as for lack of memory"
        raise SweepError(
            f"a process of the sweep {lost}: {len(rows)} of {len(runs)} runs were done; "
            f"write --jobs below {jobs}, or simulate fewer requests in a run"
        ) from error
    finally:
        for started in workers:
            started.kill()
        for started in workers:
            started.join()
    return [rows[index] for index in range(len(runs))]


def _start(worker: BaseProcess) -> None:
    """Start a process that Ctrl-C does not interrupt: it is for the command, which ends its processes."""
    resource_tracker.ensure_running()  # else the first start would start it, which unblocks the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        worker.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(connection: Connection, path: Path, settings: tuple[str, ...], seed: int, streams: Path | None) -> None:
    """Run the runs whose indexes are received; send the row of each, or its error."""
    threading.Thread(target=_end_with_the_command, daemon=True).start()
    runs: list[PlannedRun] = []
    while True:
        try:
            index = connection.recv()
        except EOFError:  # the command has ended
            return
        try:
            runs = runs or load_runs(path, settings)
            answer = _run(runs[index], index, seed, streams)
        except Exception as error:  # noqa: BLE001 - handed to the caller
            connection.send(error)
        else:
            connection.send(answer)


def _end_with_the_command() -> None:
    """End this process as soon as the command is gone, in the middle of a run: a signal may have killed it."""
    command = multiprocessing.parent_process()
    if command is not None:
        command.join()
        os._exit(1)


def _run(
    run: PlannedRun, index: int, seed: int, streams: Path | None, progress: Callable[[float], None] | None = None
) -> dict[str, Any]:
    advance = None if progress is None else (lambda arrived, every: progress(index + arrived / every))
    observe = None
    if streams is not None:
        # It imports the audit, whose kernels a simulation without recordings does not need.
        from otel_llm.scheduling.scenario.streams import recording, write_streams

        file, model = recording(streams, index), run.scenario.profile.name
        observe = lambda done, workload: write_streams(file, done, workload, model)  # noqa: E731
    row = run_scenario(run.scenario, seed, advance, observe)
    if progress is not None:
        progress(index + 1)
    return row
