"""Who gets in at the clients' port, over TLS and with a token, and whose credentials a backend gets."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from support.collector.tls_files import Pair, authority, signed
from support.patience import WAIT_S
from support.relay.fake_engine import FakeEngine, Fault
from support.relay.readers import read
from support.relay.rig import Rig, rig
from support.relay.silent import closed

CHAT: dict[str, Any] = {
    "model": "fake",
    "temperature": 0,
    "max_tokens": 8,
    "ignore_eos": True,
    "messages": [{"role": "user", "content": "x"}],
}
TOKEN, KEY, THEIRS = "the-token-of-this-relay", "the-key-of-this-backend", "the-secret-of-this-client"
TLS = "tls: {certificate: server.pem, key: server.key%s}\n"
AUTH = "auth: {tokens_file: tokens%s}\n"


def install(folder: Path, pair: Pair, client_ca: Pair | None = None) -> None:
    """Put certificates where the settings name them."""
    for name, raw in zip(("server.pem", "server.key"), pair.pem, strict=True):
        (folder / name).write_bytes(raw)
    if client_ca is not None:
        (folder / "clients.pem").write_bytes(client_ca.certificate.read_bytes())


@asynccontextmanager
async def client(ca: str = "one", shows: Pair | None = None) -> AsyncIterator[aiohttp.ClientSession]:
    """Open a client that trusts an authority, and may show a certificate; each request is a new connection."""
    context = ssl.create_default_context(cafile=str(authority(ca).certificate))
    if shows is not None:
        context.load_cert_chain(shows.certificate, shows.key)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context, force_close=True)) as session:
        yield session


async def gets_in(url: str, ca: str = "one", shows: Pair | None = None) -> bool:
    async with client(ca, shows) as session:
        try:
            async with session.get(url + "/v1/models") as response:
                await response.read()
        except aiohttp.ClientError:
            return False
        return True


def test_a_stream_over_tls(tmp_path: Path) -> None:
    install(tmp_path, signed())

    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), settings=TLS % "") as running, client() as session:
            assert urlsplit(running.url).scheme == urlsplit(running.web).scheme == "https"
            reply = await read(session, running.url + "/v1", CHAT)
            assert reply.done
            assert reply.content() == (await running.direct(CHAT)).content()
            assert not await gets_in(running.url, "two")
            async with session.get(running.web + "/v1/backends") as response:
                assert response.status == 200
            assert await in_plain_text(running) == b""

    asyncio.run(go())


async def in_plain_text(running: Rig) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(running.url).port)
    writer.write(b"GET /v1/models HTTP/1.1\r\nHost: h\r\n\r\n")
    try:
        async with asyncio.timeout(WAIT_S):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        await closed(writer)


def test_certificates_that_are_read_anew_hold_on_both_ports(tmp_path: Path) -> None:
    install(tmp_path, signed())

    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), settings=TLS % "") as running, client() as session:
            stalls = Fault("stall", after=4)
            running.fail_first(stalls)
            reading = asyncio.create_task(read(session, running.url + "/v1", CHAT))
            await stalls.reached.wait()
            (tmp_path / "server.pem").write_text("half a file")
            line, refused = running.service.reload()
            assert any("server.pem" in one for one in refused)
            assert line is not None
            assert await gets_in(running.url)
            install(tmp_path, signed("other", by="two"))
            line, refused = running.service.reload()
            assert refused == []
            assert line is not None
            assert "certificates (changed)" in line
            for url in (running.url, running.web):
                assert not await gets_in(url, "one")
                assert await gets_in(url, "two")
            stalls.released.set()
            assert (await reading).done  # its connection is the old one

    asyncio.run(go())


def test_clients_show_a_certificate_where_that_is_asked(tmp_path: Path) -> None:
    install(tmp_path, signed(), client_ca=authority())

    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), settings=TLS % ", client_ca: clients.pem, web: server") as running:
            known, stranger = signed("client"), signed("client2", by="two")
            assert not await gets_in(running.url)
            assert not await gets_in(running.url, shows=stranger)
            assert await gets_in(running.url, shows=known)
            assert await gets_in(running.web)
            install(tmp_path, signed(), client_ca=authority("two"))
            running.service.reload()
            assert not await gets_in(running.url, shows=known)
            assert await gets_in(running.url, shows=stranger)

    asyncio.run(go())


def test_who_has_no_token_reaches_no_backend(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(f"{TOKEN}\n")

    async def go() -> None:
        async with rig(tmp_path, FakeEngine(), settings=AUTH % "") as running:
            asked = len(running.engines[0].asked)
            for headers in ({}, {"Authorization": f"Basic {TOKEN}"}, {"Authorization": f"Bearer {TOKEN}x"}):
                for path in ("/v1/chat/completions", "/v1/embeddings"):
                    async with running.session.post(running.url + path, json=CHAT, headers=headers) as response:
                        assert response.status == 401
                        assert response.headers["WWW-Authenticate"] == "Bearer"
                        error = (await response.json())["error"]
                        assert error["code"] == "invalid_api_key"
                        assert TOKEN not in error["message"]
            assert len(running.engines[0].asked) == asked
            bearer = {"Authorization": f"Bearer {TOKEN}"}
            for stream in (True, False):
                body = {**CHAT, "stream": stream}
                path = running.url + "/v1/chat/completions"
                async with running.session.post(path, json=body, headers=bearer) as response:
                    assert response.status == 200
            assert all("Authorization" not in one.headers for one in running.engines[0].asked)
            async with running.session.get(running.web + "/v1/streams") as response:
                assert response.status == 401
            async with running.session.get(running.web + "/readyz") as response:
                assert response.status == 200
            (tmp_path / "tokens").write_text("another-token-of-this-test\n")
            running.service.reload()
            async with running.session.get(running.url + "/v1/models", headers=bearer) as response:
                assert response.status == 401

    asyncio.run(go())


@pytest.mark.parametrize("auth", [False, True])
def test_a_backend_with_a_key_never_gets_the_clients(
    tmp_path: Path, auth: bool, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whatever way a request takes: owned, passed on, sent again, resumed, probed."""
    caplog.set_level(logging.DEBUG)
    (tmp_path / "key").write_text(f"{KEY}\n")
    (tmp_path / "key").chmod(0o644)
    (tmp_path / "tokens").write_text(f"{THEIRS}\n")

    async def go() -> None:
        async with FakeEngine() as keyed, FakeEngine() as plain:
            keys = f"z: {{url: '{keyed.url}', api_key_file: key}}, y: {{url: '{plain.url}'}}"
            settings = f"backends: {{{keys}}}\neject: {{max_share: 0}}\n" + (AUTH % "" if auth else "")
            async with rig(tmp_path, settings=settings) as running:
                assert any(f"chmod o-r {tmp_path / 'key'}" in line for line in running.service.warnings())
                path, bearer = running.url + "/v1/chat/completions", {"Authorization": f"Bearer {THEIRS}"}

                async def ask(stream: bool, *faults: Fault) -> None:
                    left = list(faults)
                    keyed.fault_of = plain.fault_of = lambda _asked: left.pop() if left else None
                    body = {**CHAT, "stream": stream}
                    async with running.session.post(path, json=body, headers=bearer) as response:
                        assert response.status == 200
                        await response.read()

                for _ in range(2):  # each backend is the first of one
                    await ask(False)
                    for faults in ((), (Fault("reset"),), (Fault("reset", after=5),), (Fault("status", status=500),)):
                        await ask(True, *faults)
                bad = b"GET / HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer " + THEIRS.encode() + b"\x00\r\n\r\n"
                reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(running.url).port)
                writer.write(bad)
                answer = await asyncio.wait_for(reader.read(), WAIT_S)
                await closed(writer)
                assert answer.split()[1] == b"400"
                assert THEIRS.encode() not in answer
                shown = f"{await running.get('/v1/streams')}" if not auth else ""
                reported = "".join(running.reported)
            assert {one.headers.get("Authorization") for one in keyed.asked} == {f"Bearer {KEY}"}
            sent = {one.headers.get("Authorization") for one in plain.streams}
            assert sent == {None if auth else f"Bearer {THEIRS}"}
            assert keyed.streams
            for text in (caplog.text, shown, reported, *capfd.readouterr()):
                assert THEIRS not in text
                assert KEY not in text

    asyncio.run(go())


def test_the_keys_of_backends_are_read_anew(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{KEY}\n")

    async def go() -> None:
        async with FakeEngine() as engine:
            settings = f"backends: {{z: {{url: '{engine.url}', api_key_file: key}}}}\n"
            async with rig(tmp_path, settings=settings) as running:

                async def sent() -> str | None:
                    assert (await running.read(CHAT)).done
                    return engine.streams[-1].headers.get("Authorization")

                assert await sent() == f"Bearer {KEY}"
                (tmp_path / "key").write_text("two keys\nare none\n")
                _, refused = running.service.reload()
                assert any("keys of backends" in line and KEY not in line for line in refused)
                assert await sent() == f"Bearer {KEY}"
                (tmp_path / "key").write_text("the-next-key-of-this-backend\n")
                line, refused = running.service.reload()
                assert (line or "").count("keys of backends (1)") == 1
                assert refused == []
                assert await sent() == "Bearer the-next-key-of-this-backend"

    asyncio.run(go())
