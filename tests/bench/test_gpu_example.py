"""`examples/gpu`: its page and `docs/bench.md` have what was measured, and its gaps are those between all tokens."""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from otel_llm.scheduling import load_profile

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "gpu"
sys.path.insert(0, str(FOLDER))  # scripts that find each other as when they are run

from gpu_figures import gap_percentiles, readme_tables, simulator_errors  # noqa: E402
from markdown_tables import inserted  # noqa: E402

TABLES = readme_tables(json.loads((FOLDER / "h100-transformers.json").read_text(encoding="utf-8")))


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.replace(" / ", " | ").strip("|").split("|")]


def test_the_page_has_the_tables_of_what_was_measured() -> None:
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert inserted(page, TABLES) == page


def test_the_documentation_has_the_same_loads() -> None:
    section = (ROOT / "docs" / "bench.md").read_text(encoding="utf-8").partition("## On a GPU")[2].partition("\n## ")[0]
    stated = [cells(line) for line in section.splitlines() if line.startswith("|")][2:]
    known = [cells(line) for line in TABLES["loads"].splitlines()][2:]
    assert stated == [[*row[:11], row[12]] for row in known], "all but the share that was met"


def test_gaps_are_those_between_all_tokens_and_a_profile_that_is_right_has_no_error(tmp_path: Path) -> None:
    second = 1_000_000_000
    begins, profile = [second, 9 * second], load_profile(FOLDER / "h100-profile.yaml")
    served = [profile.request_overhead_ns + profile.step_overhead_ns + profile.iteration_ns(0, 0, 7)]
    served.append(served[0] + profile.step_overhead_ns + profile.iteration_ns(1, 8))
    served.append(served[1] + profile.step_overhead_ns + profile.iteration_ns(1, 9))
    times = [[begin + after for after in served] for begin in begins]
    rows = {"trace_id": [b"1" * 16, b"2" * 16], "commit_ns": begins, "times_ns": times, "input_tokens": [7, 7]}
    pq.write_table(pa.table(rows), tmp_path / "load.parquet")
    gaps = sorted(later - earlier for one in times for earlier, later in pairwise(one))
    expected = {"tbt_p50_s": gaps[1] / 1e9, "tbt_p99_s": gaps[3] / 1e9}
    assert gap_percentiles(tmp_path) == pytest.approx(expected)
    for name, found in simulator_errors(tmp_path, FOLDER / "h100-profile.yaml").items():
        assert found["p90"] == pytest.approx(0, abs=1e-6), name
