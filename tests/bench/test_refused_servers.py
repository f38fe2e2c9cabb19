"""Servers that `bench` and `capacity` refuse before a load: exit code 2, with what the server said and the remedy."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner
from support.bench.loads import MODEL, answering

from otel_llm.cli.commands.bench_command import bench
from otel_llm.cli.commands.capacity_command import capacity

NO_MODEL: dict[str, object] = {"error": {"message": "The model does not exist"}}
UNAUTHORIZED: dict[str, object] = {"error": {"message": "Unauthorized"}}
WHOLE: dict[str, object] = {"object": "chat.completion", "choices": [{"message": {"content": "all at once"}}]}


@pytest.mark.parametrize("command", [bench, capacity], ids=["bench", "capacity"])
@pytest.mark.parametrize(
    ("status", "body", "models", "says"),
    [
        (404, b"<html>no</html>", None, "no such API"),
        (404, NO_MODEL, ["llama", "qwen"], "has no model 'm': The model does not exist; it has: llama, qwen"),
        (401, UNAUTHORIZED, None, "401: Unauthorized: name a file with the key: --api-key-file F"),
        (200, WHOLE, None, "it ignores `stream`, or it is no such API"),
        (500, b"oh no", None, "status 500: oh no"),
        (429, b"later", None, "status 429: later: it is busy, or limits requests: try again later"),
    ],
    ids=["no-api", "no-model", "no-key", "no-stream", "broken", "busy"],
)
def test_a_server_that_is_refused(
    command: click.Command, status: int, body: bytes | dict[str, object], models: list[str] | None, says: str
) -> None:
    with answering(status, body, models=models) as url:
        found = CliRunner().invoke(command, [url, "--model", MODEL])
    assert found.exit_code == 2
    assert says in " ".join(found.output.split())
    assert found.exception is None or isinstance(found.exception, SystemExit)
