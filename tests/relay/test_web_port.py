"""The web port: what it shows, whom it lets change something, and that nothing on its page becomes markup."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from prometheus_client.core import Metric
from rich.console import Console
from support.live_feed import HOSTILE, Fed, events
from support.patience import WAIT_S
from support.relay.fake_engine import FakeEngine, Fault
from support.relay.rig import Rig, rig
from support.relay.signed_actions import SETTINGS, write_secret

from otel_llm.cli.output.live_view import view
from otel_llm.formats.records import StreamKey
from otel_llm.live.feed import Collected
from otel_llm.live.page import EVENTS_TYPE
from otel_llm.live.selection import Filter, Selection
from otel_llm.relay.backends.backend import Backend
from otel_llm.relay.backends.backends import Backends
from otel_llm.relay.web_port import WebPort
from otel_llm.shared.web.guard import Guard
from otel_llm.shared.web.tokens import Tokens

TOKEN = "a-token-of-this-test"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
PATHS = ("/metrics", "/v1/streams", "/v1/backends", "/v1/events?stream=none")
PAGE_PATHS = ("/", "/live/main.js", "/live/page.css")
"""Files without telemetry: a browser that opens them sends no token."""
GIVEN = 200, 400
"""The statuses of an answer that is not refused to its client; 400: the events of a stream that is none."""
CHAT: dict[str, Any] = {
    "model": "fake",
    "temperature": 0,
    "max_tokens": 12,
    "ignore_eos": True,
    "messages": [{"role": "user", "content": "a secret prompt"}],
}


class Shown:
    """What a relay has to show: here one backend's words, which are hostile."""

    def __init__(self) -> None:
        self.reported: list[str] = []
        self.scrapes = 0
        self.selected: list[Selection] = []

    def now_ns(self) -> int:
        return 0

    def streams(self, selection: Selection) -> dict[str, Any]:
        self.selected.append(selection)
        row = {"slo_class": HOSTILE, "model": HOSTILE, "trace_id": HOSTILE, "tokens": 1, "age_s": 1.0, "idle_s": 0.0}
        recent = {
            "met": None,
            "slo_class": HOSTILE,
            "model": HOSTILE,
            "outcome": HOSTILE,
            "tokens": None,
            "ttfo_s": None,
            "ttft_s": None,
            "idle_s": None,
            "fluidity_index": None,
            "trace_id": HOSTILE,
        }
        streams = [{**row, "runway_s": -1.0, "instance": HOSTILE, "exact_resume_reason": HOSTILE}]
        return {"in_flight": 1, "starving": 1, "judged": 1, "streams": streams, "recent": [recent], "decisions": []}

    def live(self, filters: Collection[Filter], followed: Collection[StreamKey]) -> Collected:
        return Fed(page={"matching": 1, "streams": self.streams(Selection())["streams"]}).collect(filters, followed)

    def families(self) -> Iterable[Metric]:
        self.scrapes += 1
        return []

    def unready(self) -> str | None:
        return "stopping"

    def drained(self, name: str) -> None:
        self.reported.append(name)


@asynccontextmanager
async def port(
    *,
    tokens: Tokens | None = None,
    guarded: bool = False,
    alone: bool = True,
    names: frozenset[str] = frozenset(),
    actions: Callable[[web.Request], Awaitable[web.Response]] | None = None,
    most_viewers: int = 32,
) -> AsyncIterator[tuple[str, Shown, Backends]]:
    """Serve a web port of backends a and `[::1]:80`."""
    shown = Shown()
    backends = Backends([Backend("a", "http://a"), Backend("[::1]:80", "http://[::1]")], time.monotonic)
    guard = Guard(names, tokens if guarded else None)
    made = WebPort(shown, backends, guard, tokens, alone=alone, actions=actions, most_viewers=most_viewers)
    server = TestServer(made.application())
    await server.start_server()
    try:
        yield f"http://127.0.0.1:{server.port}", shown, backends
    finally:
        await server.close()


async def ask(
    url: str, path: str, method: str = "GET", headers: Mapping[str, str] | None = None, data: str | None = None
) -> tuple[int, Mapping[str, str], str]:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, url + path, headers=headers, data=data) as response,
    ):
        return response.status, response.headers, await response.text()


async def post(url: str, path: str, headers: Mapping[str, str] | None = None) -> int:
    status, _, _ = await ask(url, path, "POST", {"Content-Type": "application/json", **(headers or {})}, "{}")
    return status


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    (tmp_path / "tokens").write_text(f"{TOKEN}\n")
    return Tokens(tmp_path / "tokens")


async def first_events(url: str, headers: Mapping[str, str] | None = None) -> list[tuple[str, Any]]:
    """Return the events of a viewer's first message."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/v1/events", headers=headers) as response:
        assert (response.status, response.headers["Content-Type"]) == (200, EVENTS_TYPE)
        assert response.headers["Content-Security-Policy"].startswith("default-src 'none'; base-uri")
        text = ""
        async with asyncio.timeout(WAIT_S):
            while not ("event: page" in text and text.endswith("\n\n")):
                text += (await response.content.readany()).decode()
    found = events(text)
    return found[: [name for name, _ in found].index("page") + 1]  # a reader that was kept waiting got more


def test_the_page_is_its_files_and_telemetry_comes_as_data() -> None:
    async def go() -> None:
        async with port() as (url, shown, _):
            status, headers, text = await ask(url, "/")
            assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
            assert "script-src 'self'; style-src 'self'" in headers["Content-Security-Policy"]
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert "<title>otel-llm</title>" in text
            _, headers, _ = await ask(url, "/live/main.js")
            assert headers["Content-Type"] == "text/javascript; charset=utf-8"
            history, fleet, page = await first_events(url)
            assert (history[0], history[1]["service"], fleet[0]) == ("history", "relay", "fleet")
            assert page[1]["streams"][0]["model"] == HOSTILE
            for path in history[1]["links"].values():
                assert (await ask(url, path))[0] == 200
            status, headers, _ = await ask(url, "/v1/streams")
            assert (status, headers["Content-Type"]) == (200, "application/json")
            shown.selected.clear()
            assert (await ask(url, "/v1/streams?sort=age&instance=b"))[0] == 200
            assert (await ask(url, "/v1/streams?sort=name"))[0] == 400
            assert shown.selected == [Selection(Filter(instance="b", sort="age"))]
            assert (await ask(url, "/v1/events", "HEAD"))[0] == 200
            assert (await ask(url, "/v1/nothing"))[0] == 404
            assert (await ask(url, "/v1/streams", "DELETE"))[0] == 405

    asyncio.run(go())


def test_viewers_are_bounded_and_their_parameters_checked() -> None:
    async def go() -> None:
        async with port(most_viewers=1) as (url, _, _), aiohttp.ClientSession() as session:
            status, headers, _ = await ask(url, "/v1/events?token=a-secret")
            assert status == 400
            async with session.get(f"{url}/v1/events"):
                status, headers, text = await ask(url, "/v1/events")
                assert (status, headers["Retry-After"]) == (503, "5")
                assert "limits: viewers" in text
            async with asyncio.timeout(WAIT_S):  # it has left: its place is free with the next message
                while (await ask(url, "/v1/events?stream=none"))[0] != 400 or not await first_events_or_none(url):
                    await asyncio.sleep(0.05)

    asyncio.run(go())


async def first_events_or_none(url: str) -> bool:
    """Return whether there is room for a viewer."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/v1/events") as response:
        return response.status == 200


@pytest.mark.parametrize("path", [*PATHS, *PAGE_PATHS, "/healthz", "/v1/nothing"])
def test_every_answer_keeps_a_browser_from_guessing(path: str, tokens: Tokens) -> None:
    async def go() -> None:
        for guarded in (False, True):
            async with port(tokens=tokens, guarded=guarded) as (url, _, _):
                _, headers, _ = await ask(url, path)
                assert headers["X-Content-Type-Options"] == "nosniff"

    asyncio.run(go())


def test_drain_and_undrain() -> None:
    async def go() -> None:
        async with port() as (url, shown, backends):
            assert await post(url, "/v1/backends/%5B::1%5D:80/drain") == 200
            assert [one.draining for one in backends] == [False, True]
            assert shown.reported == ["[::1]:80"]
            assert await post(url, "/v1/backends/[::1]:80/undrain") == 200
            assert [one.draining for one in backends] == [False, False]
            assert await post(url, "/v1/backends/nowhere/drain") == 404
            assert await post(url, "/v1/backends/a/stop") == 404
            assert (await ask(url, "/v1/backends/a/drain"))[0] == 405
            assert shown.reported == ["[::1]:80"]

    asyncio.run(go())


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Origin": "http://HOST"}, 200),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://["}, 403),
        ({"Origin": "http://HOST.evil.example"}, 403),
        ({"Content-Type": "text/plain"}, 403),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 403),
        ({"Host": "evil.example"}, 403),
    ],
)
def test_a_page_of_another_site_changes_nothing(headers: dict[str, str], status: int) -> None:
    async def go() -> None:
        async with port(names=frozenset()) as (url, _, backends):
            own = url.removeprefix("http://")
            found = await post(url, "/v1/backends/a/drain", {k: v.replace("HOST", own) for k, v in headers.items()})
            assert found == status
            assert backends.get("a").draining is (status == 200)

    asyncio.run(go())


@pytest.mark.parametrize("path", [*PATHS, *PAGE_PATHS])
def test_another_name_is_not_answered(path: str) -> None:
    async def go() -> None:
        async with port(names=frozenset({"relay.example"})) as (url, _, _):
            assert (await ask(url, path, headers={"Host": "evil.example"}))[0] == 403
            assert (await ask(url, path, headers={"Host": "relay.example"}))[0] in GIVEN
            assert (await ask(url, "/healthz", headers={"Host": "evil.example"}))[0] == 200
            assert (await ask(url, path, headers={"Host": "localhost"}))[0] in GIVEN

    asyncio.run(go())


@pytest.mark.parametrize(
    ("target", "hosts", "status"),
    [
        ("/v1/backends", ["localhost", "evil.example"], 400),  # refused by aiohttp's parser
        ("/v1/backends", ["evil.example", "localhost"], 400),
        ("http://evil.example/v1/backends", ["localhost"], 403),
        ("http://relay.example:9465/v1/backends", ["relay.example"], 200),
    ],
)
def test_every_name_of_a_request_counts(target: str, hosts: list[str], status: int) -> None:
    async def go() -> int:
        async with port(names=frozenset({"relay.example"})) as (url, _, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
            lines = (f"GET {target} HTTP/1.1", *(f"Host: {host}" for host in hosts), "Connection: close", "", "")
            writer.write("\r\n".join(lines).encode())
            answer = await reader.readline()
            writer.close()
            return int(answer.split()[1])

    assert asyncio.run(go()) == status


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("guarded", [True, False], ids=["web: token", "web: open"])
def test_who_changes_something_brings_a_token_where_there_are_tokens(
    tokens: Tokens, guarded: bool, alone: bool
) -> None:
    async def go() -> None:
        async with port(tokens=tokens, guarded=guarded, alone=alone) as (url, _, backends):
            assert await post(url, "/v1/backends/a/drain") == 401
            assert await post(url, "/v1/backends/a/drain", {"Authorization": f"Bearer {TOKEN}x"}) == 401
            assert not backends.get("a").draining
            for path in PATHS:
                assert ((await ask(url, path))[0] == 401) is guarded
                assert (await ask(url, path, headers=BEARER))[0] in GIVEN
            for path in PAGE_PATHS:
                assert (await ask(url, path))[0] == 200
            if guarded and alone:
                assert [name for name, _ in await first_events(url, BEARER)] == ["history", "fleet", "page"]
            assert (await ask(url, "/healthz"))[0] == 200
            assert (await ask(url, "/readyz"))[0] == 503
            assert await post(url, "/v1/backends/a/drain", BEARER) == 200
            assert backends.get("a").draining

    asyncio.run(go())


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("guarded", [True, False], ids=["web: token", "web: open"])
def test_a_signed_action_needs_its_signature_only(tokens: Tokens, guarded: bool, alone: bool) -> None:
    """No token, no content type, any host, any origin: a page of another site cannot sign."""

    async def taken(request: web.Request) -> web.Response:
        return web.Response(text=(await request.read()).decode())

    async def go() -> None:
        foreign = {"Host": "evil.example", "Origin": "https://evil.example", "Content-Type": "text/plain"}
        async with port(tokens=tokens, guarded=guarded, alone=alone, names=frozenset(), actions=taken) as (url, _, bs):
            status, headers, text = await ask(url, "/v1/actions", "POST", foreign, "signed")
            assert (status, text) == (200, "signed")
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert (await ask(url, "/v1/actions"))[0] == 405
            assert (await ask(url, "/v1/backends/a/drain", "POST", foreign, "signed"))[0] in (401, 403)
            assert (await ask(url, "/v1/actions/", "POST", foreign, "signed"))[0] in (401, 403)
            assert not bs.get("a").draining
        async with port(tokens=tokens, guarded=guarded, alone=alone, names=frozenset()) as (url, _, _):
            assert (await ask(url, "/v1/actions", "POST", foreign, "signed"))[0] == 404

    asyncio.run(go())


def test_without_tokens_only_this_machine_changes_something() -> None:
    async def go() -> None:
        async with port(alone=False) as (url, _, backends):
            assert await post(url, "/v1/backends/a/drain") == 403
            assert not backends.get("a").draining
            assert (await ask(url, "/v1/backends"))[0] == 200

    asyncio.run(go())


async def stalled(running: Rig) -> tuple[asyncio.Task[Any], Fault]:
    """Begin a stream that stalls behind some tokens."""
    stalls = Fault("stall", after=5)
    running.fail_first(stalls)
    reading = asyncio.create_task(running.read(CHAT))
    await asyncio.wait_for(stalls.reached.wait(), WAIT_S)
    await running.caught_up()
    return reading, stalls


def test_streams_and_backends_show_what_the_contract_says(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), FakeEngine()) as running:
            reading, stalls = await stalled(running)
            shown = await running.get("/v1/streams")
            (row,) = shown["streams"]
            name = "a" if running.engines[0].streams else "b"
            assert (row["instance"], row["tokens"], row["migrations"]) == (name, 4, 0)
            assert (row["exact_resume"], row["exact_resume_reason"]) == (True, None)
            assert isinstance(row["runway_s"], float)
            other = "b" if name == "a" else "a"
            async with running.session.post(f"{running.web}/v1/backends/{other}/drain", json={}) as response:
                assert (await response.json())["backends"][0]["draining"] is True
            (row,) = (await running.get("/v1/streams"))["streams"]
            assert row["exact_resume"] is False
            assert row["exact_resume_reason"] == "no other healthy backend serves the model at the same length"
            backends = (await running.get("/v1/backends"))["backends"]
            assert [one["name"] for one in backends] == ["a", "b"]
            shape = {
                *("name", "kind", "group", "healthy", "ejected", "draining", "open", "streams", "tokens", "models"),
                "continues_chats",
            }
            assert all(set(one) == shape for one in backends)
            assert {one["name"]: (one["streams"], one["open"]) for one in backends} == {
                name: (1, True),
                other: (0, False),
            }
            live = await first_events(running.web)
            (seen,) = dict(live)["page"]["streams"]
            assert (seen["tokens"], seen["instance"], seen["exact_resume"]) == (4, name, False)
            everything = f"{shown}{backends}{live}"
            assert "secret prompt" not in everything
            stalls.released.set()
            assert (await reading).done

    asyncio.run(go())


def test_the_metrics_have_the_names_of_the_contract(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), FakeEngine()) as running:
            fault = Fault("reset", after=5)
            running.fail_first(fault)
            assert (await running.read(CHAT)).done  # resumed
            served = "b" if any(one.fault is fault for one in running.engines[0].streams) else "a"
            async with running.session.get(running.url + "/v1/models") as response:
                assert response.status == 200
            reading, stalls = await stalled(running)
            found = await running.metrics()
            moved = f'from="{other(served)}",outcome="done",to="{served}"'
            assert found[f"otel_llm_relay_migrations_total{{{moved}}}"] == 1
            assert found['otel_llm_relay_failovers_total{reason="broken"}'] == 1
            assert found["otel_llm_relay_migration_gap_seconds_count"] == 1
            assert found["otel_llm_relay_added_seconds_count"] >= 3
            assert found[f'otel_llm_relay_requests_total{{code="200",instance="{served}"}}'] >= 1
            assert sum(v for k, v in found.items() if k.startswith("otel_llm_relay_requests_total{")) == 2
            assert sum(v for k, v in found.items() if k.startswith("otel_llm_relay_streams_in_flight{")) == 1
            stalls.released.set()
            await reading

    asyncio.run(go())


def other(name: str) -> str:
    return "b" if name == "a" else "a"


@pytest.mark.parametrize("begun", [b"", b"GET /metrics HTTP/1.1\r\nHo"])
def test_a_connection_without_a_request_is_closed_and_one_that_asked_stays(tmp_path: Path, begun: bytes) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), settings="limits: {header_seconds: 0.3}\n") as running:
            port = urlsplit(running.web).port
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert b" 200 " in await asyncio.wait_for(reader.readuntil(b"ok\n"), WAIT_S)
            silent, other_writer = await asyncio.open_connection("127.0.0.1", port)
            other_writer.write(begun)
            assert await asyncio.wait_for(silent.read(), WAIT_S) == b""
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert b" 200 " in await asyncio.wait_for(reader.readuntil(b"ok\n"), WAIT_S)
            for one in (writer, other_writer):
                one.close()

    asyncio.run(go())


def test_connections_over_the_limit_are_closed(tmp_path: Path) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), settings="limits: {connections: 2}\n") as running:
            port = urlsplit(running.web).port
            pairs = []
            for expected in (b" 200 ", b" 200 ", b" 503 "):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                pairs.append((reader, writer))
                writer.write(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
                assert expected in await asyncio.wait_for(reader.readuntil(b"\r\n"), WAIT_S)
            for _, writer in pairs:
                writer.close()

    asyncio.run(go())


def test_a_body_that_does_not_come_holds_up_no_stop(tmp_path: Path) -> None:
    async def go() -> None:
        write_secret(tmp_path)
        async with rig(tmp_path, FakeEngine(), settings=SETTINGS) as running:
            reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(running.web).port)
            writer.write(b"POST /v1/actions HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n")
            await running.get("/v1/backends")
        assert await asyncio.wait_for(reader.read(), WAIT_S) == b"", "the stop has waited until it was given up: 408"
        writer.close()

    asyncio.run(go())


@pytest.mark.parametrize("paused", [True, False, None])
def test_a_paused_stream_is_told_as_paused(paused: bool | None) -> None:
    shown = Shown().streams(Selection())
    row = {**shown["streams"][0], "runway_s": 3.0, "ttfo_s": 0.1, "ttft_s": 0.1}
    shown |= {"streams": [row if paused is None else row | {"paused": paused}], "recent": []}
    console = Console(width=200)
    with console.capture() as captured:
        console.print(view(shown))
    assert (" paused" in captured.get()) is bool(paused)


@pytest.mark.parametrize(
    "sent", [b"no HTTP\r\n\r\n", b"POST /v1/actions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"]
)
def test_what_is_no_request_is_told_so_and_fills_no_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, sent: bytes
) -> None:
    async def go() -> None:
        async with rig(tmp_path, FakeEngine()) as running:
            reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(running.web).port)
            writer.write(sent)
            answer = await asyncio.wait_for(reader.read(), WAIT_S)
            assert answer.split(b" ")[1] == b"400"
            assert b"this is no HTTP request" in answer
            writer.close()

    asyncio.run(go())
    assert caplog.records == []


def test_the_page_of_the_docs_names_every_metric_and_no_other(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "relay.md").read_text()
    table = text.partition("| name, behind `otel_llm_relay_`")[2].partition("\n\n")[0]
    cells = re.findall(r"(?m)^\| (`.*?) \|", table)
    reported = {name for cell in cells for name in re.findall(r"`(\w+)", cell)}

    async def go() -> None:
        async with rig(tmp_path, FakeEngine()) as running:
            families = {family.name: family.type for family in running.service.families()}
        there = {
            name.removeprefix("otel_llm_relay_") + ("_total" if kind == "counter" else "")
            for name, kind in families.items()
            if name.startswith("otel_llm_relay_")
        }
        assert reported == there

    asyncio.run(go())


def test_scrapes_of_a_second_share_one_rendering() -> None:
    async def asked() -> int:
        async with port() as (url, shown, _):
            answers = await asyncio.gather(*(ask(url, "/metrics") for _ in range(8)))
            assert {status for status, _, _ in answers} == {200}
            return shown.scrapes

    assert asyncio.run(asked()) == 1
