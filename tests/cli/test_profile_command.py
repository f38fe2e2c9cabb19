"""`otel-llm profile`: what is printed and drawn, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from otel_llm.cli.commands.profile_command import profile
from otel_llm.cli.main import COMMANDS
from otel_llm.scheduling.profiles import shipped_profiles


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
