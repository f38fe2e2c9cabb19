"""The chat example as its README runs it: replies streamed on, one trace and one class at both ends, the page."""

from __future__ import annotations

import asyncio
import itertools
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.audit.chromium import browser
from support.commands import environment
from support.patience import WAIT_S
from support.requirements import has, require

import otel_llm.audit

EXAMPLE = Path(__file__).parents[2] / "examples" / "chat-app"
WORDS = "people read while the model writes"
STOPPED_AFTER = 10


@dataclass
class Shown:
    """What a run of the example left: what it printed, its journal's rows by trace, and what the page did."""

    printed: str
    traces: list[list[dict[str, Any]]]
    statuses: list[int]
    texts: list[str]
    page: dict[str, Any] | None


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    out = tmp_path_factory.mktemp("chat")
    env = {name: value for name, value in environment().items() if not name.startswith("OPENAI_")}
    command = [sys.executable, str(EXAMPLE / "run_chat.py"), "--port", "0", "--out", str(out)]
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        said = ""
        while (found := re.search(r"^chat +(http://\S+)", said, re.MULTILINE)) is None:
            line = process.stdout.readline()
            assert line, said
            said += line
        statuses, texts = asyncio.run(ask_all(found[1]))
        page = use_page(found[1]) if has("chromium") else None
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0, printed
    finally:
        process.terminate()  # it ends its children
        process.wait(WAIT_S)
    traces: dict[str, list[dict[str, Any]]] = {}
    for row in otel_llm.audit.load(out / "journal").rows:
        traces.setdefault(str(row["trace_id"]), []).append(row)
    return Shown(printed, list(traces.values()), statuses, texts, page)


async def ask_all(url: str) -> tuple[list[int], list[str]]:
    """Ask four things at once; return the statuses and the texts that came."""
    async with httpx.AsyncClient(timeout=WAIT_S) as client:
        replies = await asyncio.gather(
            ask(client, url, "bursts", "chat"),
            ask(client, url, "healthy", "voice", stop_after=STOPPED_AFTER),
            ask(client, url, "stall-full-buffer", "made up"),
            ask(client, url, "no such model", "code"),
        )
    return [status for status, _ in replies], [text for _, text in replies]


async def ask(
    client: httpx.AsyncClient, url: str, model: str, slo_class: str, stop_after: int | None = None
) -> tuple[int, str]:
    question = {"model": model, "messages": [{"role": "user", "content": "Why do users wait?"}]}
    headers = {"x-slo-class": slo_class}
    pieces: list[str] = []
    async with client.stream("POST", f"{url}/chat", json=question, headers=headers) as reply:
        async for piece in reply.aiter_text():
            pieces.append(piece)
            if len(pieces) == stop_after:
                break
    return reply.status_code, "".join(pieces)


def use_page(url: str) -> dict[str, Any]:
    """Ask something in the page as a user of class agent would, and press Stop."""
    with browser() as page:
        page.call("Page.navigate", url=url)
        page.wait(lambda: bool(page.evaluate("document.getElementById('send')?.disabled === false")))
        page.evaluate("document.getElementById('slo').value = 'agent'")
        page.evaluate("document.getElementById('text').value = '<b>Why</b>?'")
        page.evaluate("document.getElementById('ask').requestSubmit()")
        reply = "document.querySelector('.assistant')?.textContent ?? ''"
        page.wait(lambda: len(page.evaluate(reply)) > len(WORDS))
        page.evaluate("document.getElementById('stop').click()")
        page.wait(lambda: bool(page.evaluate("document.getElementById('stop').disabled")))
        return {
            "asked": page.evaluate("document.querySelector('.user').textContent"),
            "reply": page.evaluate(reply),
            "complaints": page.complaints(),
            "elsewhere": [address for address in page.requests() if not address.startswith(url)],
        }


def ends(shown: Shown, model: str, slo_class: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the server's and the client's row of the one request for this model in this class."""
    (rows,) = (
        rows for rows in shown.traces if any((row["model"], row["slo_class"]) == (model, slo_class) for row in rows)
    )
    assert [row["slo_class"] for row in rows] == [slo_class, slo_class]
    server, client = sorted(rows, key=lambda row: str(row["measured_at"]), reverse=True)
    assert (server["measured_at"], client["measured_at"]) == ("server", "client")
    return server, client


def test_replies_are_handed_on_whole(shown: Shown) -> None:
    assert shown.statuses == [200, 200, 200, 502]
    assert [len(text.split()) for text in shown.texts[::2]] == [84, 120]
    assert all(text.startswith(WORDS) for text in shown.texts[:3])


def test_both_ends_of_a_request_are_one_trace_and_one_class(shown: Shown) -> None:
    # The words of the bursts are longer than tokens: an estimate of 84 of them, six in a chunk.
    for model, tokens, within in (("bursts", 84, 0.5), ("stall-full-buffer", 120, 0.0)):
        for row in ends(shown, model, "chat"):
            assert (row["outcome"], row["coverage"]) == ("completed", 1.0)
            assert row["tokens"] == pytest.approx(tokens, rel=within)


def test_a_reader_who_stops_ends_both(shown: Shown) -> None:
    server, client = ends(shown, "healthy", "voice")
    assert (server["outcome"], client["outcome"]) == ("cancelled", "cancelled")
    assert server["tokens"] >= STOPPED_AFTER


def test_a_model_that_is_not_there_is_an_error_at_both(shown: Shown) -> None:
    server, client = ends(shown, "no such model", "code")
    assert (server["outcome"], client["outcome"]) == ("error", "error")


def test_the_rows_are_printed_joined(shown: Shown) -> None:
    lines = shown.printed.partition("both ends of each request:")[2].split("\n")
    assert len([line for line in lines if " server " in line]) == len(shown.traces)
    for line, below in itertools.pairwise(lines):
        if " server " in line:
            assert re.match(r"[0-9a-f]{8}  server ", line)
            assert re.match(r" {10}client ", below)


def test_the_page_streams_and_stops(shown: Shown) -> None:
    require("chromium")
    assert shown.page is not None
    assert shown.page["asked"] == "<b>Why</b>?"
    assert shown.page["reply"].startswith(WORDS)
    assert shown.page["complaints"] == []
    assert shown.page["elsewhere"] == []
    server, client = ends(shown, "healthy", "agent")
    assert (server["outcome"], client["outcome"]) == ("cancelled", "cancelled")
