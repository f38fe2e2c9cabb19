"""Replies whose every byte is read at a known instant, and the request that the client makes of them."""

from __future__ import annotations

import json
from typing import Any

from support.sse_server import chunk

from otel_llm.bench.client.http_exchange import Exchange
from otel_llm.bench.client.messages import Ended
from otel_llm.bench.client.observed_request import ObservedRequest
from otel_llm.instrumentation.parse.sse_chunks import CHAT

MS = 1_000_000
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(value: dict[str, object] | bytes) -> bytes:
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def exchanged(pieces: list[tuple[int, bytes]], number: int = 0) -> ObservedRequest:
    """Return the request that these pieces, each read at its instant (ns), answer."""
    exchange = Exchange(number, 0, 0, CHAT, b"")
    request = ObservedRequest(number, 0, 0, 7, 5)
    for at_ns, data in pieces:
        assert exchange.feed(at_ns, data)
        request.extend(exchange.reply.items)
        exchange.reply.items.clear()
    if not exchange.reply.done:
        exchange.closed(pieces[-1][0])
    reply = exchange.reply
    assert reply.end_ns is not None
    assert reply.outcome is not None
    counts = reply.reader.reported.input_tokens, *reply.reader.reported.total
    request.end(Ended(number, reply.end_ns, reply.outcome, reply.error, reply.basis, *counts))
    return request


def reply(gaps_ms: list[int], **more: Any) -> list[tuple[int, bytes]]:
    """Return a reply whose chunks of a word each are read after these gaps."""
    at_ns, pieces = 0, [(0, HEAD + framed(event(chunk({"role": "assistant", "content": ""}))))]
    for index, gap_ms in enumerate(gaps_ms):
        at_ns += gap_ms * MS
        pieces.append((at_ns, framed(event(chunk({"content": f"w{index} "}, **more)))))
    pieces.append((at_ns + MS, framed(event(chunk(finish="length"))) + framed(event(b"[DONE]"))))
    pieces.append((at_ns + 2 * MS, b"0\r\n\r\n"))
    return pieces
