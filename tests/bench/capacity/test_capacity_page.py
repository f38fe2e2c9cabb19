"""What `docs/capacity.md` shows is accepted, and its tables name every option, condition and key."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from support.commands import environment

from otel_llm.bench.capacity.objective import METRICS, parse_objective
from otel_llm.cli.commands.bench_command import bench
from otel_llm.cli.commands.capacity_command import EXAMPLES, capacity
from otel_llm.cli.load_options import probe_options
from otel_llm.cli.main import main

PAGE = (Path(__file__).parents[3] / "docs" / "capacity.md").read_text(encoding="utf-8")
COMMANDS = [
    *re.findall(r"^otel-llm (capacity .*)$", PAGE, re.MULTILINE),
    *re.findall(r"^  otel-llm (capacity .*?)(?: +#.*)?$", EXAMPLES, re.MULTILINE),
]


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_is_one(line: str) -> None:
    words = shlex.split(line)
    command = main.get_command(click.Context(main), words.pop(0))
    assert command is not None
    command.make_context("otel-llm", words)


def test_every_option_is_on_the_page() -> None:
    @click.command()
    @click.argument("url")
    @probe_options
    def shared() -> None: ...

    known = {one.name for one in shared.params}
    options = [
        option
        for one in capacity.params
        if isinstance(one, click.Option) and one.name not in known
        for option in one.opts
    ]
    assert [option for option in options if option != "--format" and f"`{option}" not in PAGE] == []


def test_every_condition_of_the_page_is_read() -> None:
    section = PAGE.split("## The objective\n")[1].split("\n## ")[0]
    conditions = re.findall(r"^\| `(.+?)` \|", section, re.MULTILINE)
    assert {parse_objective(text).clauses[0].metric for text in conditions} == set(METRICS)


def test_the_search_without_a_server_runs_as_it_stands_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    section = PAGE.partition("To try it without a server")[2]
    scenario, command = re.findall(r"^```(?:yaml|sh)\n(.*?)^```", section, re.MULTILINE | re.DOTALL)[:2]
    monkeypatch.chdir(tmp_path)
    Path("scenario.yaml").write_text(scenario, encoding="utf-8")
    program, name, *arguments = shlex.split(command)
    assert (program, name) == ("otel-llm", "capacity")
    found = CliRunner().invoke(capacity, arguments)
    assert found.exit_code == 0, found.output
    assert found.output.startswith("the capacity is between ")


def test_the_load_on_the_server_of_the_demo_runs_as_the_page_of_bench_shows_it() -> None:
    page = (Path(__file__).parents[3] / "docs" / "bench.md").read_text(encoding="utf-8")
    block = re.search(r"^```sh\n(python -m otel_llm.demo.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert block is not None
    server, client = (shlex.split(line) for line in block[1].splitlines())
    assert server == ["python", "-m", "otel_llm.demo.paced_server", "--port", "8001"]
    assert client[:3] == ["otel-llm", "bench", "http://127.0.0.1:8001"]
    assert client[-2:] == ["--duration", "20s"]
    command = [sys.executable, *server[1:3], "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip().removesuffix("/v1")
        shown = CliRunner().invoke(bench, [url, *client[3:-1], "3s"])
        process.kill()
    assert "tokens counted by" in shown.output
    assert re.search(r"^errors +none", shown.output, re.MULTILINE), shown.output
