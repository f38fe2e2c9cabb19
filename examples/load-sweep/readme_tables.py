"""The tables of the README, from the committed figures; a test holds them against it. Run it to print them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import csv_rows
from levels import Level
from step_model import Point, StepModel

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

WORDS = {"chunked": "model, chunked prefills", "prompts-first": "model, prompts first", "vllm": "real vLLM"}


def tables(folder: Path) -> dict[str, str]:
    """Return the tables by the names that the README has them under."""
    fitted = json.loads((folder / "fit.json").read_text("utf-8"))
    figures = json.loads((folder / "figures.json").read_text("utf-8"))
    return {
        "fit": _fit(fitted),
        "steps": _steps(csv_rows.load(folder / "steps.csv", Point), StepModel(**fitted["model"])),
        "levels": _levels(csv_rows.load(folder / "levels.csv", Level)),
        "peaks": _peaks(figures["peaks"]),
        "alpha": _alpha(figures["optimum_load_by_alpha"]),
        "held back": _held(figures["held_back"]),
    }


def _fit(fitted: dict[str, Any]) -> str:
    model = fitted["model"]
    return (
        f"step = {model['base_ms']:.2f} ms + {model['decode_ms']:.3f} ms x replies that decode + "
        f"{model['prefill_ms']:.3f} ms x prompt tokens taken in + {1000 * model['context_ms']:.2f} us x tokens in the "
        f"cache\n\n{fitted['points']} kinds of step; R^2 {fitted['r_squared']:.3f}; residuals: {fitted['rms_ms']:.1f} "
        f"ms (root mean square), {100 * fitted['mean_off']:.0f} % (mean), {100 * fitted['most_off']:.0f} % (largest)."
    )


def _steps(points: Sequence[Point], model: StepModel) -> str:
    return _table(
        ("replies", "prompt taken in", "in the cache", "quiet, ms", "median, ms", "p90, ms", "fit, ms"),
        (
            (
                *(str(cell) for cell in (one.decodes, one.prefill, one.context)),
                *(f"{cell:.1f}" for cell in (one.quiet_ms, one.median_ms, one.p90_ms)),
                f"{model.ns(one.decodes, one.prefill, one.context) / 1e6:.1f}",
            )
            for one in points
        ),
    )


def _levels(levels: Sequence[Level]) -> str:
    rows = []
    for engine, words in WORDS.items():
        for load in sorted({one.load for one in levels if one.engine == engine}):
            mine = [one for one in levels if (one.engine, one.load) == (engine, load)]
            means = [
                sum(getattr(one, name) for one in mine) / len(mine)
                for name in ("throughput", "smooth_goodput", "tbt_s", "tpot_s", "ttft_s", "idle_s")
            ]
            rows.append(
                (words, f"{load:g}", *(f"{one:.0f}" for one in means[:2]), *(f"{one:.3f}" for one in means[2:]))
            )
    heads = ("engine", "load, 1/s", "throughput, tokens/s", "smooth goodput, tokens/s", "median TBT, s", "TPOT, s")
    return _table((*heads, "TTFT, s", "idle, s"), rows)


def _peaks(peaks: dict[str, Any]) -> str:
    heads = (
        "",
        "peak at, 1/s",
        "smooth goodput, throughput there",
        "at the highest load, 1/s",
        "smooth goodput, throughput",
    )
    return _table(
        heads,
        (
            (
                WORDS[engine],
                f"{one['optimum_load']:g}",
                f"{one['smooth_goodput']:.0f}, {one['throughput_there']:.0f}",
                f"{one['highest_load']:g}",
                f"{one['smooth_goodput_at_highest']:.0f}, {one['throughput_at_highest']:.0f}",
            )
            for engine, one in peaks.items()
        ),
    )


def _alpha(optima: dict[str, dict[str, float]]) -> str:
    alphas = list(next(iter(optima.values())))
    rows = [(WORDS[engine], *(f"{load:g}" for load in mine.values())) for engine, mine in optima.items()]
    return _table(("optimum load, 1/s, at alpha", *alphas), rows)


def _held(held: dict[str, Any]) -> str:
    rows = []
    for engine, one in held.items():
        for name, words in (("before", "as generated"), ("after", "held back")):
            mine = one[name]
            rows.append(
                (
                    f"{WORDS[engine]}, {words}",
                    *(f"{mine['tbt_ms'][which]:.0f}" for which in ("p50", "p99", "max")),
                    f"{100 * mine['attainment_by_tbt']:.0f} %",
                    f"{mine['mean_idle_s']:.6f}",
                )
            )
    heads = ("", "TBT p50, ms", "p99, ms", "longest, ms", "requests that meet TTFT 1 s, TBT 200 ms", "mean idle, s")
    return _table(heads, rows)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] + ["---:"] * (len(heads) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    for name, words in tables(Path(__file__).parent).items():
        print(f"<!-- {name} -->\n{words}\n<!-- end -->\n")
