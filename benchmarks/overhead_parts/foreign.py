"""In a process of its own: what a stream that is none of ours costs over `http.client`, bare and instrumented.

The connection is memory: no system call hides what is added. Figures are ns of this thread's CPU time, for a read of
one chunk and for a request with the head of its response.
"""

from __future__ import annotations

import http.client
import io
import json
import time
from typing import Any

from overhead_parts import wires

import otel_llm

CHUNKS = 5000
TURNS = 12


class Memory:
    """A socket that has the whole response already."""

    def __init__(self, wire: bytes) -> None:
        self._wire = wire

    def sendall(self, data: bytes) -> None:
        pass

    def makefile(self, *_: Any, **__: Any) -> io.BufferedReader:
        return io.BufferedReader(io.BytesIO(self._wire))

    def close(self) -> None:
        pass


def wire(chunks: int) -> bytes:
    """Return a response of an event stream."""
    parts = wires.chat(chunks)
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def opened(body: bytes) -> http.client.HTTPResponse:
    """Return the response of a path that is none of ours."""
    connection = http.client.HTTPConnection("model.test")
    connection.sock = Memory(body)
    connection.request("POST", "/events", b'{"stream": true}', {"Content-Type": "application/json"})
    return connection.getresponse()


def turn(body: bytes) -> tuple[float, float]:
    """Return ns for a read and ns for a request."""
    response = opened(body)
    reads = 0
    before = time.thread_time_ns()
    while response.read1():
        reads += 1
    read_ns = (time.thread_time_ns() - before) / reads
    before = time.thread_time_ns()
    for _ in range(200):
        opened(body)
    return read_ns, (time.thread_time_ns() - before) / 200


def main() -> None:
    """Print the pairs of turns as JSON: bare and instrumented."""
    body = wire(CHUNKS)
    turn(body)
    pairs = []
    for _ in range(TURNS):
        bare = turn(body)
        otel_llm.instrument()
        full = turn(body)
        otel_llm.uninstrument()
        pairs.append((bare, full))
    print(json.dumps(pairs), flush=True)


if __name__ == "__main__":
    main()
