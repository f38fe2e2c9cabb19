"""`otel-llm profile`: what is printed and drawn, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner, Result
from support.otlp import export, request_span, stream_spans
from support.recordings import json_lines
from support.scheduling.engine import run_engine

from otel_llm import semconv
from otel_llm.cli.commands.profile_command import profile
from otel_llm.cli.main import COMMANDS
from otel_llm.scheduling.profiles import load_profile, shipped_profiles


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(profile, [str(argument) for argument in arguments], catch_exceptions=False)


def test_the_command_is_in_the_list_of_commands() -> None:
    assert COMMANDS["profile"][:2] == ("otel_llm.cli.commands.profile_command", "profile")


def test_the_tables_have_the_figures_of_the_profile() -> None:
    result = run("show", "h200-llama-3.1-8b")
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["64", "6.64", "7.57", "9.47", "13.6", "20.7"] in lines  # ms at contexts of 512 to 8,192
    assert ["128", "8.22", "9.93", "13.9", "21", "–"] in lines  # no cache for 128 of 8,192
    assert ["8,192", "199", "227", "304"] in lines
    assert ["20", "ms", "423", "311", "178", "102", "53"] in lines
    assert "KV cache 900,000 tokens" in result.stdout
    assert "NVIDIA, Apache-2.0" in " ".join(result.stdout.split())


@pytest.mark.parametrize("name", shipped_profiles())
def test_every_profile_that_ships_is_named_in_the_help_and_shown(name: str) -> None:
    assert name in run("show", "--help").stdout
    assert run("show", name).exit_code == 0


def test_a_file_is_shown_and_drawn(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    facts = "version: 1\nmodel: m\naccelerator: a\nengine: e\nsource: s\nkv_tokens: 100\nmax_batch: 4\n"
    mine.write_text(f"{facts}max_batched_tokens: 64\nlinear: {{base: 1ms, per_kv_token: 10us}}\n")
    result = run("show", mine, "--html", tmp_path / "mine.html")
    assert result.exit_code == 0, result.output
    assert ["1", "2"] in [line.split() for line in result.stdout.splitlines()]  # 1 ms + 100 x 10 us
    assert "mine.html: " in result.stdout
    assert "<h1>mine</h1>" in (tmp_path / "mine.html").read_text(encoding="utf-8")


def test_bad_usage_is_exit_2_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "mine.html").write_text("version: 1\n")
    for arguments, says in (
        (["show", "h200"], "no profile that ships has this name"),
        (["show", tmp_path / "none.yaml"], "No such file"),
        (["show", tmp_path / "mine.html"], "model: missing"),
        (["show", "h200-paper-era", "--html", tmp_path / "x.png"], "cannot tell the format"),
        (["show", "h200-paper-era", "--html", tmp_path / "none" / "x.html"], "none"),
        (["show", tmp_path / "mine.html", "--html", tmp_path / "mine.html"], "is one of the inputs"),
    ):
        result = run(*arguments)
        assert result.exit_code == 2, arguments
        assert says in " ".join(result.output.split()), arguments


MS = 1_000_000
LIMITS = ("--kv-tokens", "9000", "--max-batch", "64", "--max-batched-tokens", "128")


def formula(decodes: int, kv: int, chunk: int, prior: int) -> int:
    return 2 * MS + 100_000 * decodes + 20 * kv + 30_000 * chunk + 10 * chunk * prior


def recording(folder: Path, *, plugin: bool = True) -> Path:
    """Write a second of requests to an engine as the vLLM plugin records them, or as a client does."""
    rng = Random(3)
    asked = [(rng.randrange(10**9), rng.randrange(1, 300), rng.randrange(1, 60)) for _ in range(80)]
    messages = []
    for number, one in enumerate(run_engine(asked, formula, 128).recorded, start=1):
        identity = {
            semconv.GEN_AI_REQUEST_MODEL: "tiny",
            semconv.MEASURED_AT: "server" if plugin else "client",
            semconv.GEN_AI_USAGE_INPUT_TOKENS: one.input_tokens or 0,
        }
        engine = {
            semconv.ENGINE_STEPS: len(one.times_ns),
            semconv.ENGINE_FIRST_STEP: one.first_step or 0,
            semconv.ENGINE_BATCH_MEAN: one.batch_mean or 0.0,
            semconv.GEN_AI_LATENCY_QUEUE: one.queue_s or 0.0,
            semconv.GEN_AI_LATENCY_PREFILL: one.prefill_s or 0.0,
        }
        spans = stream_spans(
            one.times_ns, request=number, commit_ns=one.commit_ns, end_ns=one.end_ns, identity=identity
        )
        facts = identity | engine if plugin else identity
        whole = request_span(request=number, start_ns=one.commit_ns, end_ns=one.end_ns, attributes=facts)
        messages.append(export(*spans, whole))
    path = folder / "recorded.jsonl"
    path.write_bytes(json_lines(messages))
    return path


def test_a_profile_is_fitted_to_a_recording_and_shown(tmp_path: Path) -> None:
    result = run("fit", recording(tmp_path), "--out", tmp_path / "mine", *LIMITS, "--accelerator", "a CPU")
    assert result.exit_code == 0, result.output
    rows = {line.split()[0]: line.split()[1:] for line in result.stdout.splitlines() if line.split()}
    assert re.search(r"decodes +1 +2\.1ms", result.stdout)
    assert re.search(r"chunk +127 +5\.81ms", result.stdout)
    assert re.search(r"pauses, part of all of these +(0 %|< 0.01 %)", result.stdout)
    assert rows["all"][1:7] == ["<", "0.01", "%"] * 2
    found = load_profile(tmp_path / "mine.yaml")
    assert (found.model, found.accelerator, found.kv_tokens, found.max_batch) == ("tiny", "a CPU", 9000, 64)
    assert found.iteration_ns(8, 900, 64, 32) == pytest.approx(formula(8, 900, 64, 32), rel=1e-3)
    assert run("show", tmp_path / "mine.yaml").exit_code == 0


def test_a_recording_without_iterations_is_refused_with_the_reason(tmp_path: Path) -> None:
    result = run("fit", recording(tmp_path, plugin=False), "--out", tmp_path / "mine", *LIMITS)
    assert result.exit_code == 2
    reported = " ".join(result.output.split())
    assert (
        "no stream of the recording has the iterations of its engine (80 streams, measured: 80 at the client)"
        in reported
    )
    assert "with the plugin of otel-llm" in reported
    assert not (tmp_path / "mine.yaml").exists()


def test_bad_usage_of_fit_is_exit_2(tmp_path: Path) -> None:
    path = recording(tmp_path)
    cases: list[tuple[list[str | Path], str]] = [
        ([tmp_path / "none.jsonl", "--out", tmp_path / "mine", *LIMITS], "none.jsonl"),
        ([path, "--out", tmp_path / "none" / "mine", *LIMITS], "none"),
        ([path, "--out", tmp_path / "mine", *LIMITS[:4]], "--max-batched-tokens"),
        ([path, "--out", tmp_path / "mine", *LIMITS[:5], "0"], "--max-batched-tokens"),
    ]
    for arguments, says in cases:
        result = run("fit", *arguments)
        assert result.exit_code == 2, arguments
        assert says in " ".join(result.output.split()), arguments
