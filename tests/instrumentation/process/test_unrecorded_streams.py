"""Streamed replies that no hook records: counted, one warning a process; not so event streams that are no replies."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import httpx2
import pytest
import requests
from opentelemetry import context
from support.instrumentation.fake_environment import OFFSET_NS, FakeEnvironment, WordReader
from support.instrumentation.recorded import Recorded
from support.logs import ours
from support.patience import WAIT_S
from support.sse_server import SseServer, whole

import otel_llm
from otel_llm.instrumentation.core.committed_request import Request
from otel_llm.instrumentation.core.recording import Recording
from otel_llm.instrumentation.core.stats import MAX_NAMES, OTHERS, Stats
from otel_llm.instrumentation.process import runtime
from otel_llm.instrumentation.process.unrecorded import SETTLES_NS, Unrecorded, is_prompt

ROOT = Path(__file__).parents[3]
SSE = "text/event-stream; charset=utf-8"


@pytest.fixture(autouse=True)
def replies(server: SseServer) -> None:
    server.replies["m"] = whole(3)


def counted() -> dict[str, int]:
    running = runtime.running()
    assert running is not None
    return dict(running.stats.snapshot()["unrecorded"])


def test_each_http_client_counts_an_api_that_is_not_known(recorder: Recorded, server: SseServer) -> None:
    url, body = f"{server.url}/answers", {"model": "m", "message": "hi"}

    async def main() -> None:
        async with httpx.AsyncClient() as client, client.stream("POST", url, json=body) as reply:
            await reply.aread()
        async with aiohttp.ClientSession() as session, session.post(url, json=body) as response:
            await response.read()

    for module in (httpx, httpx2):
        client: Any = module.Client()
        with client, client.stream("POST", url, json=body) as reply:
            reply.read()
    requests.post(url, json=body, timeout=WAIT_S).content  # noqa: B018
    asyncio.run(main())
    what = "POST 127.0.0.1/v1/answers (text/event-stream) over"
    assert counted() == {f"{what} httpx": 2, f"{what} httpx2": 1, f"{what} aiohttp": 1, f"{what} http.client": 1}
    assert recorder.streams() == []


def test_a_known_api_is_recorded_and_not_counted(recorder: Recorded, server: SseServer) -> None:
    httpx.post(f"{server.url}/chat/completions", json={"model": "m", "stream": True, "messages": []}).read()
    assert counted() == {}
    assert len(recorder.streams()) == 1


def test_what_track_records_is_not_counted(
    recorder: Recorded, server: SseServer, caplog: pytest.LogCaptureFixture
) -> None:
    body = {"model": "m", "message": "hi"}
    with httpx.stream("POST", f"{server.url}/answers", json=body) as reply:
        list(otel_llm.track(reply.iter_lines()))

    def lines() -> Any:
        with httpx.stream("POST", f"{server.url}/answers", json=body) as reply:
            yield from reply.iter_lines()

    list(otel_llm.track(lines()))
    assert counted() == {}
    running = runtime.running()
    assert running is not None
    running.unrecorded.complete()
    assert ours(caplog) == []
    httpx.post(f"{server.url}/answers", json=body).read()
    running.unrecorded.complete()  # warns, and counts as before
    with httpx.stream("POST", f"{server.url}/answers", json=body) as reply:
        list(otel_llm.track(reply.iter_lines()))
    assert list(counted().values()) == [1]
    assert len(recorder.streams()) == 3


CODE = """
import sys
sys.path.insert(0, "tests")
from support.sse_server import SseServer, whole
import httpx, otel_llm
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
otel_llm.instrument(exporter=InMemorySpanExporter())
with SseServer({"m": whole(3)}) as server:
    for _ in range(int(sys.argv[1])):
        httpx.post(f"{server.url}/answers", json={"model": "m", "message": "secret"}).read()
"""


@pytest.mark.parametrize("times", [1, 3])
def test_a_process_warns_once_and_says_what_to_do(times: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(times)], cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S, check=True
    )
    [line] = done.stderr.splitlines()
    assert "POST 127.0.0.1/v1/answers (text/event-stream) over httpx" in line
    assert "otel_llm.track" in line
    assert "docs/stacks/not-recorded.md" in line
    assert "secret" not in line


def test_a_long_lived_process_warns_at_the_next_such_stream(caplog: pytest.LogCaptureFixture) -> None:
    now_ns = 0
    unrecorded = Unrecorded(Stats(), lambda: now_ns)

    def passes() -> int:
        unrecorded.answered("httpx", "h", "/answers", b'{"prompt": 1}', SSE)
        return len(ours(caplog))

    assert [passes(), passes()] == [0, 0]
    now_ns = SETTLES_NS
    assert [passes(), passes()] == [1, 1]
    unrecorded.complete()
    assert len(ours(caplog)) == 1


@pytest.mark.parametrize(("waited_ns", "claims", "left"), [(0, 1, 1), (0, 3, 1), (SETTLES_NS, 1, 2)])
def test_track_claims_one_stream_that_just_came(waited_ns: int, claims: int, left: int) -> None:
    now_ns = 0
    stats = Stats()
    unrecorded = Unrecorded(stats, lambda: now_ns)

    def passes_and_is_tracked() -> None:
        nonlocal now_ns
        for _ in range(2):
            unrecorded.answered("httpx", "h", "/answers", b'{"prompt": 1}', SSE)
        now_ns += waited_ns
        for _ in range(claims):
            unrecorded.claim()

    contextvars.copy_context().run(passes_and_is_tracked)
    assert sum(stats.unrecorded.values()) == left
    unrecorded.complete()  # now, and not at the end of the tests' process


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/mcp", b'{"method":"tools/call","params":{"input":{}},"jsonrpc":"2.0","id":1}'),
        ("/a2a", b'{"jsonrpc": "2.0", "method": "message/stream", "params": {"message": {}}}'),
        ("/graphql", b'{"query": "subscription { x }"}'),
        ("/v1/images/generations", b'{"prompt": "a cat", "stream": true}'),
        ("/v1/audio/speech", b'{"input": "hello"}'),
        ("/v1/traces", b'{"text": 1}'),
        ("/events", b'{"topic": "x"}'),
        ("/query", b"SELECT 1 FORMAT JSONEachRow"),
        ("/upload", object()),
        ("/long", b'{"prompt": "' + bytes(1 << 20) + b'"}'),
        ("/mcp", {"jsonrpc": "2.0", "params": {}, "text": 1}),
        ("/told", b'{"note": "\\"prompt\\": 1"}'),
    ],
)
def test_what_is_plainly_no_prompt(path: str, body: object) -> None:
    assert not is_prompt(path, body)


@pytest.mark.parametrize(
    "body", [{"message": "hi"}, b'{"messages":[]}', '{"message": "hi"}', b'{"model":"m","prompt":"x"}']
)
def test_what_looks_like_a_prompt(body: object) -> None:
    assert is_prompt("/answers", body)


@pytest.mark.parametrize("content_type", ["application/json", "text/html", "", "application/grpc"])
def test_an_answer_that_is_no_stream_is_not_looked_at(content_type: str) -> None:
    stats = Stats()
    Unrecorded(stats, lambda: 0).answered("httpx", "h", "/answers", b'{"prompt": 1}', content_type)
    assert stats.snapshot()["unrecorded"] == {}


def test_a_path_is_counted_without_its_ids_and_names_are_bounded() -> None:
    stats = Stats()
    unrecorded = Unrecorded(stats, lambda: 0)
    for number in range(1000):
        unrecorded.answered("httpx", "h", f"/chats/{number + 1000}/answers", b'{"prompt": 1}', SSE)
    assert stats.snapshot()["unrecorded"] == {"POST h/chats/*/answers (text/event-stream) over httpx": 1000}
    unrecorded.complete()  # now, and not at the end of the tests' process
    for number in range(200):
        stats.pass_by(f"kind {number}")
    assert len(stats.unrecorded) == MAX_NAMES + 1
    assert stats.unrecorded[OTHERS] == 200 - MAX_NAMES + 1


def test_the_tally_counts_streams_by_stack(recorder: Recorded, server: SseServer) -> None:
    httpx.post(f"{server.url}/chat/completions", json={"model": "m", "stream": True, "messages": []}).read()
    list(otel_llm.track(iter("ab"), slo_class="chat"))
    recorder.streams()
    running = runtime.running()
    assert running is not None
    found = running.stats.snapshot()
    assert found["begun"] == found["ended"] == {"httpx": 1, "track": 1}
    assert found["tokens"] == {"httpx": 3, "track": 2}
    assert (found["outcomes"], found["classes"]) == ({"completed": 2}, {"chat": 1})


def test_a_recording_that_is_given_up_counts_as_ended_only_if_it_was_announced() -> None:
    host = FakeEnvironment()
    never = Recording(host, Request("chat m", host.now_ns, OFFSET_NS), WordReader())
    never.begin(context.get_current())
    never.give_up()
    assert host.stats.snapshot()["ended"] == {}
    host.record().give_up()
    assert sum(host.stats.ended.values()) == sum(host.stats.begun.values()) == 1
