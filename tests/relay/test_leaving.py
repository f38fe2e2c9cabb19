"""A client that leaves in mid-answer is no fault of ours: nothing is logged, and the relay serves on."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import struct
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support.patience import WAIT_S
from support.relay.rig import rig

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
PIECE = b"data: x\n\n"
CHAT = json.dumps({"stream": True, "messages": []}).encode()
CLIENTS = 20


class Backend:
    """A backend that answers each POST with one line, and sends the next when it is told."""

    def __init__(self) -> None:
        self.begun: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"POST"):
            writer.write(HEAD + PIECE)
            self.begun.append(writer)
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
            writer.close()


async def client(port: int, path: str) -> socket.socket:
    """Ask, and read the beginning of the answer."""
    loop = asyncio.get_running_loop()
    sock = socket.socket()
    sock.setblocking(False)
    await loop.sock_connect(sock, ("127.0.0.1", port))
    head = f"POST {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(CHAT)}\r\n\r\n".encode()
    await loop.sock_sendall(sock, head + CHAT)
    answer = b""
    while PIECE not in answer:
        answer += await loop.sock_recv(sock, 65536)
    return sock


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
def test_clients_that_leave_are_no_traceback(tmp_path: Path, path: str, caplog: pytest.LogCaptureFixture) -> None:
    """The next line comes in the very instant in which its client leaves."""
    caplog.set_level(logging.INFO)

    async def go() -> None:
        backend = Backend()
        server = await asyncio.start_server(backend.serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with rig(tmp_path, settings=f"backends: {{z: {{url: '{url}', kind: openai}}}}\n") as running:
            port = urlsplit(running.url).port
            assert port is not None
            async with asyncio.timeout(WAIT_S):
                clients = [await client(port, path) for _ in range(CLIENTS)]
                for writer, sock in zip(backend.begun, clients, strict=True):
                    writer.write(PIECE)
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    sock.close()
                async with running.session.get(running.url + "/v1/models") as response:
                    assert response.status == 200
                while (await running.metrics()).get('otel_llm_relay_streams_in_flight{instance="z"}'):
                    await asyncio.sleep(0.01)
            for writer in backend.begun:
                writer.close()
        server.close()

    asyncio.run(go())
    assert [one.getMessage() for one in caplog.records if one.exc_info] == []
