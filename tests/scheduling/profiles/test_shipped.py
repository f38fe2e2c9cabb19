"""The profiles that ship: their points, what lies between and beyond, and their documented figures."""

from __future__ import annotations

import csv
from fractions import Fraction
from pathlib import Path

import pytest
from support.scheduling.profiles import interpolated_ns

from otel_llm.scheduling.profiles import load_profile, shipped_profiles
from otel_llm.scheduling.profiles.profile_file import SHIPPED
from otel_llm.scheduling.profiles.table import TableProfile

MEASURED = ("h100-llama-3.1-8b", "h200-llama-3.1-8b")
ROOT = Path(__file__).parents[3]


def rows(name: str) -> dict[tuple[int, int, int, int], int | Fraction]:
    """Return the lengths of the table, in ns: it has tenths of a microsecond."""
    with (SHIPPED / f"{name}.csv").open(encoding="utf-8") as file:
        lines = list(csv.reader(file))[1:]
    found: dict[tuple[int, int, int, int], int | Fraction] = {}
    for line in lines:
        b, kv, chunk, prior = map(int, line[:4])
        found[b, kv, chunk, prior] = round(float(line[4]) * 10_000) * 100
    return found


def test_the_names() -> None:
    assert shipped_profiles() == ("cpu-tiny", "h100-llama-3.1-8b", "h200-llama-3.1-8b", "h200-paper-era")
    assert load_profile(Path("h200-paper-era")).name == "h200-paper-era"


@pytest.mark.parametrize("name", MEASURED)
def test_every_measured_point_is_given_back(name: str) -> None:
    profile = load_profile(name)
    measured = rows(name)
    assert len(measured) == 2936
    assert {at: profile.iteration_ns(*at) for at in measured} == measured


@pytest.mark.parametrize(
    "at",
    [
        (1, 10, 0, 0),
        (3, 5000, 0, 0),
        (50, 250_123, 0, 0),
        (300, 700_000, 0, 0),
        (512, 2_000_000, 0, 0),
        (1000, 900_000, 0, 0),
        (0, 0, 33, 0),
        (0, 0, 10_000, 20_000),
        (0, 0, 0, 0),
        (7, 7_001, 100, 900),
        (130, 400_000, 2000, 5000),
        (511, 1_300_000, 8191, 16_385),
    ],
)
@pytest.mark.parametrize("name", MEASURED)
def test_between_and_beyond_it_is_the_nested_interpolation(name: str, at: tuple[int, int, int, int]) -> None:
    assert load_profile(name).iteration_ns(*at) == interpolated_ns(rows(name), at, kv_per_decode=True)


@pytest.mark.parametrize("name", MEASURED)
def test_the_facts_of_the_measured_ones(name: str) -> None:
    profile = load_profile(name)
    assert isinstance(profile, TableProfile)
    assert (profile.name, profile.max_batch, profile.max_batched_tokens) == (name, 512, 8192)
    assert (profile.step_overhead_ns, profile.request_overhead_ns) == (1_750_000, 25_000_000)
    assert profile.kv_tokens == {"h100-llama-3.1-8b": 450_000, "h200-llama-3.1-8b": 900_000}[name]
    assert profile.grid.per_decode


def test_the_paper_s_figures_come_out_of_the_paper_era_profile() -> None:
    """15 ms at batch 1; about 50 requests of (1000, 4000), at half of the output, in 20 ms, and 150 in 40 ms."""
    profile = load_profile("h200-paper-era")
    assert profile.iteration_ns(1, 3000) == 15_000_000
    assert profile.iteration_ns(50, 50 * 3000) == 20_050_000
    assert profile.iteration_ns(150, 150 * 3000) == 40_150_000
    assert profile.iteration_ns(0, 0, 8192, 0) == 182_032_000
    assert profile.iteration_ns(0, 0, 1000, 1000) == 31_760_000
    assert (profile.step_overhead_ns, profile.request_overhead_ns) == (0, 0)


def test_the_tables_are_attributed() -> None:
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    assert "aiconfigurator" in notice
    assert "NVIDIA" in notice
    for name in MEASURED:
        assert f"{name}.csv" in notice
        assert "NVIDIA, Apache-2.0" in load_profile(name).source
