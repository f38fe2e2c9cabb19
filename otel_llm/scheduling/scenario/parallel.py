"""Run the runs of a sweep, on several processors."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TYPE_CHECKING, Any

from otel_llm.scheduling.scenario.running import run_scenario
from otel_llm.scheduling.scenario.sweep import load_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from otel_llm.scheduling.scenario.sweep import PlannedRun


def run_sweep(
    path: Path,
    settings: Sequence[str],
    runs: Sequence[PlannedRun],
    seed: int,
    jobs: int,
    progress: Callable[[float], None] | None = None,
) -> list[dict[str, Any]]:
    """Return the row of each run that `load_runs` planned for these settings; the rows do not depend on `jobs`.

    With several jobs, each of as many processes reads the file itself. `progress` is called with the runs that are
    done; with one job also in fractions of a run.

    Raises:
        ConfigError: a run is refused.
    """
    if min(jobs, len(runs)) < 2:
        return [_run_here(run, seed, done, progress) for done, run in enumerate(runs)]
    # A started process inherits no threads, such as those of a progress bar.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(runs)), context) as pool:
        waiting = [pool.submit(_run_in_process, path, tuple(settings), place, seed) for place in range(len(runs))]
        try:
            for done, finished in enumerate(as_completed(waiting), 1):
                finished.result()
                if progress is not None:
                    progress(done)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        return [one.result() for one in waiting]


def _run_here(run: PlannedRun, seed: int, done: int, progress: Callable[[float], None] | None) -> dict[str, Any]:
    if progress is None:
        return run_scenario(run.scenario, seed)
    row = run_scenario(run.scenario, seed, lambda arrived, every: progress(done + arrived / every))
    progress(done + 1)
    return row


def _run_in_process(path: Path, settings: tuple[str, ...], place: int, seed: int) -> dict[str, Any]:
    return run_scenario(load_runs(path, settings)[place].scenario, seed)
