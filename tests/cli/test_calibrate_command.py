"""`otel-llm calibrate`: alpha from who left or complained, the prefill curve, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from support.otlp import IDENTITY, T0_NS, export, request_span, stream_spans
from support.recordings import json_lines

from otel_llm import semconv
from otel_llm.cli.commands.calibrate_command import calibrate
from otel_llm.cli.main import COMMANDS
from otel_llm.rules.files.slo_file import load_slo

S = 10**9


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(calibrate, [str(argument) for argument in arguments], catch_exceptions=False)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Readers of 20 tokens (4 s) who then wait; they leave at 0.3 a second of waiting, and never else.

    The first token takes 10 ms and 0.1 ms for each token of the prompt; requests do not slow each other.
    """
    generator = np.random.default_rng(1)
    messages = []
    for number in range(1, 151):
        patience, wait, prompt = generator.exponential(1 / 0.3), generator.exponential(3.0), 100 * (1 + number % 7)
        commit = T0_NS + number * 60 * S
        first = commit + 10_000_000 + prompt * 100_000
        left = patience < wait
        end = commit + round((4.2 + min(patience, wait)) * S)  # token 21 is due 21 times 0.2 s after the commit
        tokens = [first] * 20 + ([] if left else [end])
        outcome = "cancelled" if left else "completed"
        reported = {**IDENTITY, semconv.GEN_AI_USAGE_INPUT_TOKENS: prompt}
        spans = stream_spans(tokens, request=number, commit_ns=commit, end_ns=end, outcome=outcome, identity=reported)
        messages.append(export(request_span(request=number, start_ns=commit, end_ns=end, attributes=reported), *spans))
    path = tmp_path_factory.mktemp("recording") / "spans.jsonl"
    path.write_bytes(json_lines(messages))
    return path


def test_the_command_is_in_the_list_of_commands() -> None:
    assert COMMANDS["calibrate"][:2] == ("otel_llm.cli.commands.calibrate_command", "calibrate")


def test_alpha_comes_back_from_the_spans(recording: Path) -> None:
    found = json.loads(run("alpha", recording, "--format", "json").stdout)
    (linear,) = (one for one in found["fits"] if one["penalty"] == "linear")

    assert found["basis"] == "leaving"
    assert (found["left_reading"], found["left_out"], found["requests"]) == (0, 0, 150)
    assert linear["beta_low"] < 0.3 < linear["beta_high"]
    assert found["worth_tokens"] == 21.0
    assert linear["alpha"] == pytest.approx(21 * linear["beta"])
    assert found["effect_shown"]
    assert sum(one["left"] for one in found["by_idle"]) == found["left_waiting"]


def test_the_table_says_what_cannot_be_reported(recording: Path) -> None:
    text = run("alpha", recording, "--worth", "100").stdout
    for words in (
        "150 readers:",
        "a lost reader is worth 100 tokens",
        "Alpha by shape",
        "Where they left",
        "benefit: {al",
    ):
        assert words in text, words


def test_the_yaml_is_taken_by_an_slo_file(recording: Path, tmp_path: Path) -> None:
    benefit = run("alpha", recording, "--format", "yaml").stdout
    fluidity = run("prefill", recording, "--format", "yaml").stdout
    slo = tmp_path / "slo.yaml"
    slo.write_text(f"version: 1\ndefault: chat\nclasses:\n  chat:\n    {benefit}    {fluidity}")
    chat = load_slo(slo).get("chat")

    assert chat.benefit.alpha > 1
    assert chat.fluidity.first_deadline_ns(100) == pytest.approx(20_000_000, rel=1e-4)
    assert chat.fluidity.first_deadline_ns(700) == pytest.approx(80_000_000, rel=1e-4)


def test_complaints_are_fitted_where_they_are_given(recording: Path, tmp_path: Path) -> None:
    rows = [f"{number:032x}" for number in range(1, 41)] + ["f" * 32]
    complaints = tmp_path / "complaints.csv"
    complaints.write_text("\n".join(["trace_id", *rows]))
    result = run("alpha", recording, "--complaints", complaints, "--format", "json")
    found = json.loads(result.stdout)

    assert (found["basis"], found["events"], found["by_idle"]) == ("complaints", 40, [])
    assert not found["effect_shown"]  # they were chosen by their number
    assert "1 complaint is about a request that is not in the recording" in result.stderr
    assert "do not show that waiting has an effect" in run("alpha", recording, "--complaints", complaints).stdout


def test_complaints_about_others_are_reported_too_where_too_few_are_left(recording: Path, tmp_path: Path) -> None:
    complaints = tmp_path / "complaints.csv"
    complaints.write_text("\n".join(["trace_id", "f" * 32, "e" * 32]))
    result = run("alpha", recording, "--complaints", complaints)
    assert result.exit_code == 2
    assert "2 complaints are about requests that are not in the recording" in result.stderr


def test_the_prefill_curve_comes_back_from_the_spans(recording: Path) -> None:
    found = json.loads(run("prefill", recording, "--format", "json").stdout)
    text = run("prefill", recording).stdout

    assert found["coefficients"] == pytest.approx([0.01, 1e-4, 0.0], abs=1e-9)
    assert (found["requests"], found["not_alone"], found["left_out"]) == (150, 0, 0)
    for words in ("150 requests", "100 µs a token", "150 of 150 hold it", "fluidity: {ttft: {curve: [[100, 20"):
        assert words in text, words


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["alpha", "RECORDING", "--worth", "0"], "--worth 0"),
        (["alpha", "RECORDING", "--measured-at", "server"], "nothing was measured at server"),
        (["alpha", "RECORDING", "--complaints", "none.csv"], "none.csv: No such file"),
        (["prefill", "RECORDING", "--share", "2"], "--share 2"),
        (["prefill", "RECORDING", "--share", "much"], "'much'"),
        (["prefill", "RECORDING", "--headroom", "0"], "--headroom 0"),
        (["alpha", "missing.jsonl"], "missing.jsonl"),
        (["prefill", "RECORDING", "--class", "nobody"], "no SLO class 'nobody'"),
    ],
)
def test_bad_usage_is_exit_2_with_a_remedy(recording: Path, arguments: list[str], says: str) -> None:
    result = run(*(str(recording) if one == "RECORDING" else one for one in arguments))
    assert result.exit_code == 2
    assert says in " ".join(result.output.split())


def test_too_little_is_exit_2(tmp_path: Path) -> None:
    path = tmp_path / "few.jsonl"
    path.write_bytes(json_lines([export(*stream_spans([T0_NS + S], end_ns=T0_NS + S))]))
    for kind, says in (("alpha", "are too few to fit"), ("prefill", "are too few for a curve")):
        result = run(kind, path)
        assert result.exit_code == 2
        assert says in " ".join(result.output.split())
