"""What `docs/capacity.md` shows is accepted, and its tables name every option, condition and key."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from otel_llm.bench.capacity.objective import METRICS, parse_objective
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
