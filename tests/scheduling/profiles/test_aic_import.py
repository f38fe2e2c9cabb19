"""Profiles from AIConfigurator's data: the sizes, a stand-in for its model, and the real one if it is installed."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.requirements import require

from otel_llm.cli.commands.profile_command import profile
from otel_llm.scheduling.profiles import load_profile
from otel_llm.scheduling.profiles.aic_import import PACKAGE, ImportAicError, sizes, table_text
from otel_llm.scheduling.profiles.grid import Point
from otel_llm.scheduling.profiles.profile_file import SHIPPED
from otel_llm.scheduling.profiles.table import read_grid


def formula_ms(at: Point) -> float:
    return 5 + 0.01 * at.decodes + 3e-5 * at.kv_tokens + 0.02 * at.chunk + 1e-6 * at.chunk * at.prior


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(profile, ["import-aic", *map(str, arguments)], catch_exceptions=False)


def test_the_sizes_end_at_the_engine_s_limits_and_at_a_full_cache() -> None:
    points = sizes(kv_tokens=4096, max_batch=48, max_batched_tokens=100)
    assert sorted({at.decodes for at in points}) == [0, 1, 2, 4, 8, 16, 32, 48]
    assert sorted({at.chunk for at in points}) == [0, 64, 100]
    assert {at.prior for at in points if at.chunk} == {0, 1024, 4096, 16_384}
    assert {at.kv_tokens for at in points if at.decodes == 8} == {8 * one for one in (128, 256, 512)}
    assert {at.kv_tokens for at in points if at.decodes == 48} == {48 * 128, 48 * 256}, "a table continues from two"
    assert not [at for at in points if not at.decodes and not at.chunk]
    assert len(set(points)) == len(points)


def test_the_table_is_read_and_answers_as_the_estimate_does(tmp_path: Path) -> None:
    points = sizes(kv_tokens=100_000, max_batch=64, max_batched_tokens=512)
    (tmp_path / "made.csv").write_text(table_text(formula_ms, points), encoding="utf-8")
    grid = read_grid(tmp_path / "made.csv")
    assert grid.per_decode
    assert grid.points == len(points)


@pytest.mark.parametrize(
    ("length_ms", "says"),
    [
        (None, "has no estimate of decode_batch 1, decode_kv_tokens 128"),
        (float("nan"), "has no estimate of"),
        (-1.0, "has no estimate of"),
        (0.1, "make no table: 0.1 ms are less than the"),
    ],
)
def test_estimates_that_make_no_table_are_refused(length_ms: float | None, says: str) -> None:
    odd = Point(1, 128, 0, 0) if length_ms != 0.1 else Point(8, 8 * 256, 0, 0)
    with pytest.raises(ImportAicError, match=says):
        table_text(lambda at: length_ms if at == odd else formula_ms(at), sizes(10_000, 8, 100))


class Native:
    """AIConfigurator's model, as far as it is used."""

    configs: list[dict[str, Any]]

    @classmethod
    def from_native(cls, config: dict[str, Any]) -> Native:
        if config["system_name"] != "h100_sxm":
            raise OSError("no such system")
        cls.configs.append(config)
        return cls()

    def estimate_forward_pass_time_ms(self, iteration: dict[str, Any]) -> float:
        scheduled = iteration["scheduled_requests"]
        chunk = scheduled["sum_prefill_tokens"]
        assert scheduled["num_prefill_requests"] == (1 if chunk else 0)
        return formula_ms(
            Point(
                scheduled["num_decode_requests"],
                scheduled["sum_decode_kv_tokens"],
                chunk,
                scheduled["sum_prefill_kv_tokens"],
            )
        )


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> type[Native]:
    module: Any = ModuleType("aiconfigurator_core.sdk.rust_engine_step")
    module.RustForwardPassPerfModel = Native
    Native.configs = []
    for name in ("aiconfigurator_core", "aiconfigurator_core.sdk"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(importlib.metadata, "version", lambda _name: "0.12.0")
    return Native


LIMITS = ("--model", "m", "--kv-tokens", "100000", "--max-batch", "64", "--max-batched-tokens", "512")


def test_the_command_writes_a_profile_and_shows_it(stand_in: type[Native], tmp_path: Path) -> None:
    out = tmp_path / "made.tp2"
    result = run(*LIMITS, "--system", "h100_sxm", "--tensor-parallel", "2", "--step-overhead", "1.75ms", "--out", out)
    assert result.exit_code == 0, result.output
    (config,) = stand_in.configs
    assert (config["model_name"], config["backend"], config["backend_version"], config["tp_size"]) == (
        "m", "vllm", "current", 2,
    )  # fmt: skip
    found = load_profile(tmp_path / "made.tp2.yaml")
    assert (found.tensor_parallel, found.step_overhead_ns, found.max_batch) == (2, 1_750_000, 64)
    assert found.source == f"Sums of measured kernels in {PACKAGE} 0.12.0 (NVIDIA, Apache-2.0)."
    assert found.iteration_ns(8, 8 * 1024, 128, 1024) == round(formula_ms(Point(8, 8192, 128, 1024)) * 1e4) * 100
    assert "made.tp2.csv" in "".join(result.stdout.split())
    assert "m on 2 x h100_sxm, vllm current" in result.stdout


@pytest.mark.usefixtures("stand_in")
def test_an_engine_without_data_and_a_bad_length_are_refused(tmp_path: Path) -> None:
    for arguments, says in (
        (("--system", "h300"), "aiconfigurator-core refuses m on h300 with vllm current: no such system"),
        (("--system", "h100_sxm", "--step-overhead", "5x"), "--step-overhead: '5x' is no duration; write a length"),
    ):
        result = run(*LIMITS, *arguments, "--out", tmp_path / "made")
        assert result.exit_code == 2
        assert says in " ".join(result.output.split())
    assert list(tmp_path.iterdir()) == []


def test_without_the_extra_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "aiconfigurator_core", None)
    result = run(*LIMITS, "--system", "h100_sxm", "--out", tmp_path / "made")
    assert result.exit_code == 2
    assert "pip install 'otel-llm[collector,aic]'" in result.output


@pytest.mark.parametrize("name", ["h100", "h200"])
def test_the_tables_that_ship_are_made_again(name: str, tmp_path: Path) -> None:
    require("aiconfigurator")
    limits = ("--model", "meta-llama/Meta-Llama-3.1-8B", "--kv-tokens", "900000", "--backend-version", "0.24.0")
    result = run(*limits, "--system", f"{name}_sxm", "--out", tmp_path / "made")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "made.csv").read_bytes() == (SHIPPED / f"{name}-llama-3.1-8b.csv").read_bytes()
