"""`otel-llm demo` with what cannot be: it says so before anything runs."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from otel_llm.cli.commands.demo_command import demo
from otel_llm.demo import demo_children


class Started(click.ClickException):
    """Stand for the collector: the first thing that a demo starts."""

    exit_code = 7


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def collector(_: Path) -> None:
        raise Started("started")

    monkeypatch.setattr(demo_children, "collector", collector)
    (tmp_path / "env").mkdir()
    return tmp_path


def run(folder: Path) -> Result:
    return CliRunner().invoke(demo, ["--out", str(folder / "out"), "--vllm", str(folder / "env")])


@pytest.mark.parametrize(
    ("there", "missing"), [((), "bin/vllm"), (("tiny/config.json",), "bin/vllm"), (("bin/vllm",), "tiny")]
)
def test_a_folder_that_is_no_vllm_environment(folder: Path, there: tuple[str, ...], missing: str) -> None:
    for name in there:
        (folder / "env" / name).parent.mkdir()
        (folder / "env" / name).touch()
    done = run(folder)
    reported = " ".join(done.stderr.split())
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"no vLLM environment: {folder / 'env' / missing} is missing" in reported
    assert "`make vllm-env`" in reported
    assert not (folder / "out").exists()


def test_a_vllm_environment_is_taken(folder: Path) -> None:
    (folder / "env" / "tiny").mkdir()
    (folder / "env" / "bin").mkdir()
    (folder / "env" / "bin" / "vllm").touch()
    assert run(folder).exit_code == Started.exit_code
