"""Run the runs of a sweep, on several processors."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Any

from otel_llm.scheduling.scenario.running import run_scenario
from otel_llm.scheduling.scenario.sweep import load_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
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
    if min(jobs, len(runs)) < 2:
        return [_run(run, place, seed, streams, progress) for place, run in enumerate(runs)]
    # A started process inherits no threads, such as those of a progress bar.
    context = multiprocessing.get_context("spawn")
    jobs = min(jobs, len(runs))
    done = 0
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(jobs, context) as pool:
        try:
            waiting = [
                pool.submit(_run_in_process, place, path, tuple(settings), seed, streams) for place in range(len(runs))
            ]
            for finished in as_completed(waiting):
                finished.result()
                done += 1
                if progress is not None:
                    progress(done)
        except (BrokenProcessPool, MemoryError) as error:
            # A process that the pool had not finished to start when another one died is not ended by it, and waits for ever.
            for process in set(multiprocessing.active_children()) - others:
                process.kill()
            lost = "has no memory left" if isinstance(error, MemoryError) else "was killed, as for lack of memory"
            raise SweepError(
                f"a process of the sweep {lost}: {done} of {len(runs)} runs were done; "
                f"write --jobs below {jobs}, or simulate fewer requests in a run"
            ) from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        return [one.result() for one in waiting]


def _run(
    run: PlannedRun, place: int, seed: int, streams: Path | None, progress: Callable[[float], None] | None = None
) -> dict[str, Any]:
    advance = None if progress is None else (lambda arrived, every: progress(place + arrived / every))
    observe = None
    if streams is not None:
        # It imports the audit, whose kernels a simulation without recordings does not need.
        from otel_llm.scheduling.scenario.streams import recording, write_streams

        file, model = recording(streams, place), run.scenario.profile.name
        observe = lambda done, workload: write_streams(file, done, workload, model)  # noqa: E731
    row = run_scenario(run.scenario, seed, advance, observe)
    if progress is not None:
        progress(place + 1)
    return row


def _run_in_process(
    place: int, path: Path, settings: tuple[str, ...], seed: int, streams: Path | None
) -> dict[str, Any]:
    return _run(load_runs(path, settings)[place], place, seed, streams)
