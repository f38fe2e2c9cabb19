"""Rebuild figures 5, 6, 9 and 11 of Wang et al. from a load sweep.

    python examples/load-sweep/run.py [FOLDER]                     # from the committed measurements, half a minute
    python examples/load-sweep/run.py FOLDER --measure --vllm .venv-vllm    # measures anew, half an hour

`--measure` runs a real vLLM on this machine's CPU (`make vllm-env`) and writes `samples.csv`, `runs.csv` and
`recorded/`. What follows from them (step times, fit, levels, figures) is the same every time.
"""

from __future__ import annotations

import argparse
import json
import runpy
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import csv_rows
import drawing
import levels
import numpy as np
import step_model
from batching import serve
from levels import Level
from load_requests import poisson
from step_model import Point, Sample

from otel_llm.audit.report.html_page import page, picture

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pyarrow as pa
    from batching import Policy
    from step_model import StepModel

HERE: Final = Path(__file__).parent
LOADS: Final = (0.5, 1.0, 2.0, 3.0, 3.5, 4.0, 4.25, 4.5, 4.75, 5.0, 5.25, 5.5, 6.0, 7.0, 8.0)
"""Levels of the model, requests/s; close together if the peaks are."""
SECONDS: Final = 120.0
SEEDS: Final = (1, 2, 3)
POLICIES: Final[tuple[Policy, ...]] = ("chunked", "prompts-first")
MOST_RUNNING: Final = 64
STEP_TOKENS: Final = 512
"""Both as the real server was started with (`load_server.py`)."""
HELD: Final = {"chunked": 4.5, "vllm": 3.0}
"""The loads at which the output delay trick is tried: busy, and not yet beyond the peak."""
QUANTILES: Final = 100
PICTURES: Final = (
    ("figure-5", "What the classical metrics say of the load", 740),
    ("figure-6", "What the reader gets: smooth goodput", 640),
    ("figure-9", "The output delay trick, on the replies of the real vLLM", 600),
    ("figure-11", "The optimum load and alpha", 640),
)


def modelled(model: StepModel, load: float, seed: int, policy: Policy = "chunked") -> pa.RecordBatch:
    """Return what clients would have recorded of one load of the model."""
    requests = poisson(load, SECONDS, seed)
    return levels.recorded(requests, serve(requests, model, MOST_RUNNING, STEP_TOKENS, policy))


def sweep(model: StepModel, policy: Policy, seeds: Iterable[int] = SEEDS) -> list[Level]:
    """Return all levels of the model under one policy."""
    return [levels.level(modelled(model, load, seed, policy), policy, load, seed) for load in LOADS for seed in seeds]


def recordings(folder: Path) -> dict[float, Path]:
    """Return the recordings of the real sweep by their loads."""
    return {float(file.stem): file for file in sorted(folder.glob("*.parquet"), key=lambda file: float(file.stem))}


def holding(streams: pa.RecordBatch) -> dict[str, Any]:
    """Try the output delay trick on recorded streams; return what it does to the gaps and to the idle time.

    `drawn`: the delivery whose longest gap shrinks most among those whose reader waits less than a second.
    """
    after = levels.held_back(streams)
    idle_s = [_idle_s(one) for one in (streams, after)]
    times = [one.column("times_ns").to_pylist() for one in (streams, after)]
    gained = [
        drawing.longest(mine) - drawing.longest(held) if idle < 1 else -1
        for mine, held, idle in zip(*times, idle_s[0], strict=True)
    ]
    drawn = gained.index(max(gained))
    commit_ns = streams.column("commit_ns")[drawn].as_py()
    return {
        "requests": len(streams),
        "idle_the_same": idle_s[0] == idle_s[1],
        **{
            name: _said(one, idle)
            for name, one, idle in zip(("before", "after"), (streams, after), idle_s, strict=True)
        },
        "drawn": {
            "idle_s": idle_s[0][drawn],
            "before_ns": [at - commit_ns for at in times[0][drawn]],
            "after_ns": [at - commit_ns for at in times[1][drawn]],
        },
    }


def _idle_s(streams: pa.RecordBatch) -> list[float]:
    idle: list[float] = levels.judged(streams).column("idle_s").to_pylist()
    return idle


def _said(streams: pa.RecordBatch, idle_s: Sequence[float]) -> dict[str, Any]:
    gaps_ms = levels.gaps_ms(streams)
    quantiles = np.quantile(gaps_ms, np.linspace(0, 1, QUANTILES + 1), method="inverted_cdf")
    return {
        "tbt_ms": {f"p{q}": round(float(quantiles[q]), 3) for q in (50, 90, 99)}
        | {"max": round(float(gaps_ms[-1]), 3)},
        "gaps_within_200ms": round(float((gaps_ms <= 200).mean()), 6),
        "attainment_by_tbt": levels.attainment_by_tbt(streams),
        "mean_idle_s": round(float(np.mean(idle_s)), 6),
        "quantiles_ms": [round(float(one), 3) for one in quantiles],
    }


def results(folder: Path, sweeps: dict[str, list[Level]], model: StepModel) -> dict[str, Any]:
    """Return what the figures say, as `figures.json` has it."""
    held = {
        "chunked": holding(modelled(model, HELD["chunked"], SEEDS[0])),
        "vllm": holding(levels.kept(recordings(folder / "recorded")[HELD["vllm"]])),
    }
    peaks = {}
    for engine, mine in sweeps.items():
        load, most = levels.optimum(mine, levels.ALPHA)
        top = max(one.load for one in mine)
        flat = levels.mean_at(mine, top, 0.0)
        peaks[engine] = {
            "optimum_load": load,
            "smooth_goodput": round(most, 3),
            "throughput_there": round(levels.mean_at(mine, load, 0.0), 3),
            "highest_load": top,
            "smooth_goodput_at_highest": round(levels.mean_at(mine, top, levels.ALPHA), 3),
            "throughput_at_highest": round(flat, 3),
        }
    alphas = {
        engine: {f"{alpha:g}": levels.optimum(mine, alpha)[0] for alpha in drawing.ALPHAS}
        for engine, mine in sweeps.items()
    }
    return {"peaks": peaks, "optimum_load_by_alpha": alphas, "held_back": held}


def draw(folder: Path) -> None:
    """Write all that follows from the measurements in `folder`; pictures if there is a browser."""
    table = step_model.points(csv_rows.load(folder / "samples.csv", Sample))
    csv_rows.write(table, folder / "steps.csv")
    fitted = step_model.fit(csv_rows.load(folder / "steps.csv", Point))
    (folder / "fit.json").write_text(json.dumps(fitted.words(), indent=1) + "\n", encoding="utf-8")
    sweeps: dict[str, list[Level]] = {policy: sweep(fitted.model, policy) for policy in POLICIES}
    real = recordings(folder / "recorded")
    sweeps["vllm"] = [levels.level(levels.kept(file), "vllm", load, 1) for load, file in real.items()]
    csv_rows.write([one for mine in sweeps.values() for one in mine], folder / "levels.csv")
    found = results(folder, sweeps, fitted.model)
    (folder / "figures.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print("no Chromium found: the figures are computed, the pictures are not drawn", file=sys.stderr)
        return
    photograph = runpy.run_path(str(HERE.parent / "paper-figures" / "draw.py"))["photograph"]
    for (name, title, height), figure in zip(PICTURES, figures(sweeps, found), strict=True):
        with tempfile.TemporaryDirectory() as work:
            file = Path(work) / "page.html"
            file.write_text(page(title, picture(name, title, title, ""), {name: figure}), encoding="utf-8")
            photograph(browser, file, folder / f"{name}.png", height)


def figures(sweeps: dict[str, list[Level]], found: dict[str, Any]) -> list[drawing.Figure]:
    """Return figures 5, 6, 9 and 11."""
    held = found["held_back"]["vllm"]
    drawn = held["drawn"]
    quantiles = {name: held[name]["quantiles_ms"] for name in ("before", "after")}
    return [
        drawing.figure_5(sweeps),
        drawing.figure_6(sweeps),
        drawing.figure_9(drawn["before_ns"], drawn["after_ns"], drawn["idle_s"], quantiles),
        drawing.figure_11(sweeps["chunked"]),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=HERE)
    parser.add_argument("--measure", action="store_true", help="run the real vLLM and measure anew")
    parser.add_argument("--vllm", type=Path, default=HERE.parents[1] / ".venv-vllm", help="its environment")
    parser.add_argument("--rounds", type=int, default=6, help="rounds of step times")
    parser.add_argument("--runs", type=int, default=2, help="runs of each load; the quietest is kept")
    asked = parser.parse_args()
    if asked.measure:
        from measuring import measure

        measure(asked.folder, asked.vllm, asked.rounds, asked.runs)
    draw(asked.folder)


if __name__ == "__main__":
    main()
