"""Figures of recorded loads: the gaps between all tokens, and how far the simulator is from the same requests."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from otel_llm.audit import load_streams
from otel_llm.bench.recording.run_folder import WARMUP
from otel_llm.scheduling import load_profile
from otel_llm.shared.formatting import number, seconds, share

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "examples" / "sweeping")]

from markdown_tables import markdown  # noqa: E402
from simulator_error_parts import errors  # noqa: E402
from simulator_error_parts.load import Served  # noqa: E402


def served(*recordings: Path) -> list[Served]:
    """Return the complete requests of recorded loads as their client saw them, by their intended times."""
    rows = [row for batch in load_streams(*recordings) for row in batch.to_pylist()]
    known = [row for row in rows if row["complete"] and row["times_ns"] and row["input_tokens"]]
    found = [Served(row["input_tokens"], row["commit_ns"], row["times_ns"]) for row in known]
    return sorted(found, key=lambda one: one.sent_ns)


def gap_percentiles(run: Path) -> dict[str, float]:
    """Return the percentiles of the gaps between the tokens of all requests without the warm-up, s."""
    gaps = np.concatenate([np.diff(one.times_ns) for one in served(run)]) / 1e9
    p50, p99 = np.quantile(gaps, [0.5, 0.99], method="inverted_cdf").tolist()
    return {"tbt_p50_s": p50, "tbt_p99_s": p99}


def simulator_errors(run: Path, profile: Path) -> dict[str, Any]:
    """Return the errors of single requests of a load, |simulated / real - 1|, and those of the means, by figure.

    All are simulated; a reply whose tokens all came at once is not compared, as its ITL is 0.
    """
    warm_up = run / WARMUP
    requests = served(run, *([warm_up] if warm_up.exists() else []))
    pairs = zip(requests, errors.simulated(requests, load_profile(profile)), strict=True)
    real, ours = zip(*(pair for pair in pairs if pair[0].times_ns[0] < pair[0].times_ns[-1]), strict=True)
    return errors.compare(errors.values_of(real), errors.values_of(ours))


def readme_tables(results: Mapping[str, Any]) -> dict[str, str]:
    """Return the tables of README.md by name."""
    steps: Mapping[str, Any] = results["steps"]
    loads = [name for name in steps if name.startswith("load-")]
    heads = ["requests/s", "valid", "requests", "tokens/s", "TTFT p50", "p99", "TBT p50", "p99", "idle p50", "p99"]
    heads += ["fluidity p50", "met", "send lag p99, ms"]
    rows = []
    for name in loads:
        one, found = steps[name], steps[name]["classes"]["quick"]["client"]
        words = one["command"].split()
        times = [found["ttft_p50_s"], found["ttft_p99_s"], one["tbt_p50_s"], one["tbt_p99_s"]]
        times += [found["idle_p50_s"], found["idle_p99_s"]]
        row = [words[words.index("--rate") + 1], "yes" if one["valid"] else "no", f"{one['requests']:,}"]
        row += [number(found["throughput_tok_s"]), *map(seconds, times), f"{found['fluidity_p50']:.2f}"]
        rows.append([*row, share(found["attainment"]), f"{one['send_lag_ms']['p99']:.1f}"])
    probes = [probe for name in steps if name.startswith("capacity") for probe in steps[name]["probes"]]
    found = [
        [number(one["rate"]), one["verdict"], f"{one['requests']:,}"]
        + ["-" if one[name] is None else share(one[name]) for name in ("raw", "high", "backlog_slope")]
        + [f"{one['seconds']:.0f}"]
        for one in probes
    ]
    apart = [
        [words[words.index("--rate") + 1]]
        + [f"{share(one[figure]['median'])} / {share(one[figure]['p90'])}" for figure in errors.FIGURES]
        for name, one in steps["profile"]["errors"].items()
        if (words := steps[name]["command"].split())
    ]
    return {
        "loads": markdown(heads, rows, 0),
        "probes": markdown(("requests/s", "verdict", "requests", "met", "at most", "backlog", "seconds"), found, 0),
        "errors": markdown(("requests/s", "TTFT", "ITL", "E2E"), apart, 0),
    }
