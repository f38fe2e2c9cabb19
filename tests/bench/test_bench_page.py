"""What `docs/bench.md` shows is accepted, and its tables name every option, key and kind of error."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from pathlib import Path

import click
import pytest

from otel_llm.bench.client import http_exchange, load_run, request_sender, streamed_reply
from otel_llm.bench.judging import judge_validity
from otel_llm.bench.load_result import LoadResult, WarmUp
from otel_llm.cli.commands.bench_command import bench
from otel_llm.cli.main import main

PAGE = (Path(__file__).parents[2] / "docs" / "bench.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^otel-llm (.*)$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_of_the_page_is_one(line: str) -> None:
    context = click.Context(main)
    command: click.Command = main
    words = shlex.split(line)
    while isinstance(command, click.Group):
        found = command.get_command(context, words.pop(0))
        assert found is not None
        command = found
    command.make_context("otel-llm", words)


def test_every_option_of_a_load_is_on_the_page() -> None:
    options = [option for one in bench.params if isinstance(one, click.Option) for option in one.opts]
    assert [option for option in options if not re.search(rf"{option}\b", PAGE)] == []


def test_every_key_of_the_json_is_on_the_page() -> None:
    validity = judge_validity([], 0.0, 0, 1, 0)
    result = LoadResult(validity, True, 0, 0, Counter(), "none", {}, WarmUp(0, 0, "none"))
    table = PAGE.partition("## JSON")[2]
    assert [key for key in result.as_json() if f"`{key}`" not in table] == []


def test_every_kind_of_error_is_on_the_page() -> None:
    kinds = {
        *(streamed_reply.CLOSED_EARLY, streamed_reply.ERROR_EVENT, streamed_reply.TOO_LONG, streamed_reply.CLIENT_BUG),
        *(http_exchange.NOT_STREAMED, http_exchange.BAD_HTTP, load_run.TIMEOUT, load_run.CUT_SHORT),
        *(request_sender.REFUSED, request_sender.UNREACHABLE, request_sender.TLS, request_sender.CLIENT_LIMIT),
    }
    assert [kind for kind in sorted(kinds) if f"`{kind}`" not in PAGE] == []
