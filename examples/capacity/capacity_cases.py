"""The cases of the example: the servers, the search, and the file that keeps what it found."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
MODEL: Final = "tiny"
INPUT, OUTPUT = (16, 64), (8, 32)
"""The shortest and the longest prompt and reply, in tokens; drawn evenly."""
BETWEEN: Final = (0.5, 128)
BUDGET: Final = "20m"
SIMULATED: Final = ("--precision", "0.3", "--budget", "30000")
PROFILE: Final = "engine-a.yaml"
"""Of the replica that the scenarios simulate; relative to this folder."""


@dataclass(frozen=True, slots=True)
class Case:
    """A search. Measured on `replicas` of a vLLM with `max_num_seqs`, two of them behind the relay; or simulated."""

    name: str
    words: str
    seed: int
    max_num_seqs: int = 16
    replicas: int = 1
    scenario: str | None = None


CASES: Final = {
    case.name: case
    for case in (
        Case("engine-a-1", "engine a, first search", 1),
        Case("engine-a-2", "engine a, second search", 2),
        Case("engine-b", "engine b", 1, max_num_seqs=2),
        Case("relay", "two of engine a behind the relay", 1, replicas=2),
        Case("simulated", "engine a, simulated", 1, scenario="scenario.yaml"),
        Case("simulated-relay", "two of engine a, simulated", 1, scenario="scenario-relay.yaml"),
    )
}


def search_command(case: Case, url: str, budget: str | None = None) -> list[str]:
    """Return the command of a case's search, to be run in the repository's root; `url` is that of its server.

    `budget`, a duration, replaces that of a measured case, for a trial.
    """
    load = ("--seed", str(case.seed), "--between", f"{BETWEEN[0]:g}..{BETWEEN[1]:g}")
    if case.scenario is not None:
        options = ["--simulate", f"examples/capacity/{case.scenario}", *load, *SIMULATED]
    else:
        spend = ("--precision", "1.0", "--budget", budget or BUDGET)
        options = [url, "--model", MODEL, *lengths(), "--slo", "examples/capacity/slo.yaml", *load, *spend]
    return ["otel-llm", "capacity", *options, "--format", "json"]


def lengths() -> tuple[str, ...]:
    """Return the options for the lengths of prompts and replies."""
    return ("--input", f"{INPUT[0]}..{INPUT[1]}", "--output", f"{OUTPUT[0]}..{OUTPUT[1]}")


def keep(folder: Path, name: str, result: dict[str, Any]) -> None:
    """Write the result of a case."""
    (folder / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def load_results(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the results that a folder has, by the names of their cases, in the order of the cases."""
    files = {name: folder / f"{name}.json" for name in CASES}
    return {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items() if file.exists()}
