"""A server of replies that no honest server sends: endless lines, headers without end, bombs, broken text."""

from __future__ import annotations

import socket
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

MIB = 2**20
LINE_BYTES = 12 * MIB
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n"
_CHUNK = b'data: {"id":"1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n'


def _long_line() -> Iterator[bytes]:
    yield _HEAD + b"\r\n" + _CHUNK % b"a"
    yield b'data: {"choices":[{"index":0,"delta":{"content":"'
    for _ in range(LINE_BYTES // MIB):
        yield b"x" * MIB
    yield b'"}}]}\n\ndata: [DONE]\n\n'


def _no_line_end() -> Iterator[bytes]:
    yield _HEAD + b"\r\n" + _CHUNK % b"a"
    for _ in range(LINE_BYTES // MIB):
        yield b"x" * MIB


def _headers() -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\n"
    for number in range(LINE_BYTES // 1024):
        yield b"X-%d: %s\r\n" % (number, b"x" * 1000)


def _gzip_bomb() -> Iterator[bytes]:
    yield _HEAD + b"Content-Encoding: gzip\r\n\r\n"
    packer = zlib.compressobj(wbits=31)
    yield packer.compress(_CHUNK % b"a")
    for _ in range(LINE_BYTES // MIB):
        yield packer.compress(b"x" * MIB)
    yield packer.flush()


def _gzip_bomb_of_events() -> Iterator[bytes]:
    yield _HEAD + b"Content-Encoding: gzip\r\n\r\n"
    packer = zlib.compressobj(wbits=31)
    for _ in range(256):
        yield packer.compress(b": comment\n\n" * 1024)
    yield packer.compress(_CHUNK % b"a" + b"data: [DONE]\n\n") + packer.flush()


def _broken_text() -> Iterator[bytes]:
    yield _HEAD + b"\r\n"
    for _ in range(100):
        yield b"data: \xff\xfe\xc3(\xed\xa0\x80\n\n" + _CHUNK % b"\xff\xc0" + b"\x80\xff: \xfe\n"
    yield b"data: [DONE]\n\n"


def _deep_json() -> Iterator[bytes]:
    yield _HEAD + b"\r\n"
    yield b"data: " + b"[" * MIB + b"\n\n"
    yield b'data: {"choices":' + b'[{"delta":' * 100_000 + b"\n\ndata: [DONE]\n\n"


ATTACKS: dict[str, Callable[[], Iterator[bytes]]] = {
    "long_line": _long_line,
    "no_line_end": _no_line_end,
    "headers": _headers,
    "gzip_bomb": _gzip_bomb,
    "gzip_bomb_of_events": _gzip_bomb_of_events,
    "broken_text": _broken_text,
    "deep_json": _deep_json,
}


@contextmanager
def hostile_server() -> Iterator[str]:
    """Serve each attack under its name as the first part of the path; return the URL without it."""
    with socket.create_server(("127.0.0.1", 0), backlog=32) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=_answer, args=(connection,), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


def _answer(connection: socket.socket) -> None:
    with connection, suppress(OSError):
        request = b""
        while b"\r\n\r\n" not in request:
            request += connection.recv(65536)
        name = request.split(b"/", 2)[1].decode()
        for piece in ATTACKS[name]():
            connection.sendall(piece)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65536):
            pass
