"""A column and a figure are defined once: few files name one, and the examples of CONTRIBUTING.md are all it takes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.otlp import IDENTITY, T0_NS, export, stream_spans
from support.recordings import journal

ROOT = Path(__file__).parents[1]
SOURCES = {path: path.read_text("utf-8") for path in (ROOT / "otel_llm").rglob("*.py")}
EXAMPLES = re.findall(r"```diff\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), flags=re.DOTALL)
MOST_FILES = 3

CHECK = """
import json, sys
import pyarrow.parquet as pq
from otel_llm.audit.columns_page import with_tables
from otel_llm.audit.compare.comparison import compare
from otel_llm.audit.compare.gate import GATED
from otel_llm.audit.input.stream_batch import STREAMS
from otel_llm.audit.load import load
from otel_llm.audit.summary_figures import lines
from otel_llm.slo.figures import VALUES
from otel_llm.slo.metrics import CHARTS

found = load(sys.argv[1])
summary = found.summary()
found.write_requests(sys.argv[2])
(figures,) = summary["classes"]["chat"].values()
page = with_tables(open(sys.argv[3], encoding="utf-8").read())
print(json.dumps({
    "row": [row["inference_s"] for row in found.rows],
    "frame": str(found.requests["inference_s"].dtype),
    "parquet": str(pq.read_schema(sys.argv[2]).field("inference_s").type),
    "streams": str(STREAMS.field("inference_s").type),
    "chart": any(one.column == "inference_s" for one in CHARTS),
    "summary": figures["inference_p99_s"],
    "terminal": [line for line in lines(summary["classes"]) if line[0].startswith("engine")],
    "spark": any(one.name == "inference_s" for one in VALUES),
    "comparison": [one.better for one in compare(found, found).changes if one.figure == "inference_p99_s"],
    "gated": "inference_p99_s" in GATED,
    "docs": ["`inference_s` | s | time that the engine worked" in page, "`inference_p99_s`" in page],
}))
"""


@pytest.mark.parametrize(
    ("name", "most"),
    [
        # Of a request, computed: the table, and what the report says of them.
        *(("normalized_latency_s", 1), ("fluidity_line", 2)),
        # Of a request, stated: the table, the field, and who states it; `tokens_recorded`: rows of both kinds.
        *(("relay_lag_s", 3), ("tokens_recorded", 3)),
        # Of a summary: the table, and the tables that show it.
        *(("ttfo_p99_s", 2), ("itl_p99_s", 1), ("e2e_p50_s", 1), ("goodput_req_s", 4)),
        # Of a window: the table, and the charts over time.
        ("idle_s_sum", 3),
    ],
)
def test_few_files_name_a_column_or_a_figure(name: str, most: int) -> None:
    naming = sorted(str(path.relative_to(ROOT)) for path, text in SOURCES.items() if re.search(rf"\b{name}\b", text))
    assert len(naming) <= most, naming


def changes(example: str) -> list[tuple[str, str, str]]:
    """Return the changes of an example: (path, text before, text after)."""
    found = []
    for part in re.split(r"^--- ", example, flags=re.MULTILINE)[1:]:
        path, _, hunks = part.partition("\n")
        for hunk in hunks.split("@@\n"):
            rows = hunk.splitlines(keepends=True)
            before, after = ("".join(row[1:] for row in rows if row[0] in kept) for kept in (" -", " +"))
            found.append((path, before, after))
    return found


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_touches_few_files_and_fits(example: str) -> None:
    made = changes(example)
    assert len({path for path, _, _ in made}) <= MOST_FILES
    assert all((ROOT / path).read_text("utf-8").count(before) == 1 for path, before, _ in made)


def test_the_examples_are_all_that_a_column_and_a_figure_take(tmp_path: Path) -> None:
    for folder in ("otel_llm", "rules"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for path, before, after in (change for example in EXAMPLES for change in changes(example)):
        copy = tmp_path / path
        copy.write_text(copy.read_text("utf-8").replace(before, after), encoding="utf-8")
    spans = stream_spans(
        [T0_NS + at * 10**8 for at in range(1, 20)],
        end_ns=T0_NS + 19 * 10**8,
        identity={**IDENTITY, "gen_ai.latency.time_in_model_inference": 1.5},
    )
    (tmp_path / "a.otlp").write_bytes(journal([export(*spans)]))
    ran = subprocess.run(
        [sys.executable, "-c", CHECK, "a.otlp", "rows.parquet", str(ROOT / "docs" / "audit.md")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "OTEL_LLM_CORE": "plain"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == {
        "row": [1.5],
        "frame": "Float64",
        "parquet": "double",
        "streams": "double",
        "chart": True,
        "summary": 1.5,
        "terminal": [["engine, 99 % at most", "1.5 s"]],
        "spark": True,
        "comparison": ["lower"],
        "gated": True,
        "docs": [True, True],
    }
