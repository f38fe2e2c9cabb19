"""Requests that are read late, compressed, or not at all, and replies that do not say what they are."""

from __future__ import annotations

import asyncio
import gzip
import logging
import zlib
from typing import Any

import pytest
import zstandard
from support.instrumentation.asgi_by_hand import (
    ASKED,
    END,
    QUESTION,
    START,
    App,
    Message,
    Server,
    piece,
    replies,
    scope_of,
    serve,
)
from support.instrumentation.recorded import Recorded
from support.logs import ours

from otel_llm import semconv
from otel_llm.instrumentation.server.asgi import StreamMiddleware
from otel_llm.instrumentation.server.exchange import MAX_BODY


def recorded(recorder: Recorded) -> tuple[object, object]:
    stream = recorder.stream()
    return stream.outcome, stream.last[semconv.TOKENS]


# A request that is read late, compressed, or not at all.


def late(*messages: Message, before: int = 1, extra: int = 0) -> App:
    """Return an application that sends some messages before it reads the request."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for message in messages[:before]:
            await send(message)
        for _ in range(1 + extra):
            await receive()
        for message in messages[before:]:
            await send(message)

    return app


@pytest.mark.parametrize("before", [1, 2, 3, 4])
def test_a_request_that_is_read_after_the_head(before: int, recorder: Recorded) -> None:
    serve(late(START, piece("one"), piece("two"), END, before=before), Server())
    assert recorded(recorder) == ("completed", 2)
    [request] = recorder.requests()
    model = (request.attributes or {}).get(semconv.GEN_AI_REQUEST_MODEL)
    assert model == ("tiny" if before < 4 else None)  # the last was sent before the request was read


def test_a_request_in_pieces_around_the_head(recorder: Recorded) -> None:
    server = Server({**ASKED, "body": QUESTION[:5], "more_body": True}, {**ASKED, "body": QUESTION[5:]})

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send(START)
        await receive()
        await send(piece("one"))
        await send(END)

    serve(app, server)
    assert recorded(recorder) == ("completed", 1)


@pytest.mark.parametrize(("before", "whole"), [(1, False), (2, True)])
@pytest.mark.parametrize(
    ("status", "content_type", "error"), [(429, b"application/json", "429"), (200, b"application/json", "not_a_stream")]
)
def test_a_refusal_before_the_request_is_read(
    before: int, whole: bool, status: int, content_type: bytes, error: str, recorder: Recorded
) -> None:
    head = {**START, "status": status, "headers": [(b"content-type", content_type)]}
    serve(late(head, END, before=before), Server())
    assert recorder.stream().outcome == "error"
    [request] = recorder.requests()
    assert (request.attributes or {})[semconv.ERROR_TYPE] == error


def test_a_request_for_no_stream_that_is_read_after_the_head(recorder: Recorded) -> None:
    head = {**START, "headers": [(b"content-type", b"application/json")]}
    serve(late(head, END), Server({**ASKED, "body": b"{}"}))
    assert recorder.spans() == ()


def test_a_request_that_a_background_task_reads_after_the_end(recorder: Recorded) -> None:
    reading: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({**START, "headers": []})
        await send(END)
        reading.append(receive)

    async def main() -> None:
        server = Server()
        await StreamMiddleware(app)(scope_of(), server.receive, server.send)
        await reading[0]()

    asyncio.run(main())
    assert recorder.stream().outcome == "error"


PACKED = {
    "gzip": gzip.compress(QUESTION),
    "deflate": zlib.compress(QUESTION),
    "zstd": zstandard.compress(QUESTION),
    "None": QUESTION,
}


@pytest.mark.parametrize("coding", PACKED)
def test_a_compressed_request_asks_for_a_stream(coding: str, recorder: Recorded) -> None:
    gate = Server({**ASKED, "body": PACKED[coding]})

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        [begun] = recorder.streams()
        assert (begun.segments[0].attributes or {})[semconv.GEN_AI_REQUEST_MODEL] == "tiny"
        for message in (START, piece("one"), END):
            await send(message)

    serve(app, gate, scope_of(headers=[(b"content-encoding", coding.encode())]))
    assert recorded(recorder) == ("completed", 1)


@pytest.mark.parametrize(
    ("body", "coding"),
    [(gzip.compress(bytes(MAX_BODY + 1)), b"gzip"), (b"junk", b"gzip"), (QUESTION, b"br"), (b"junk", b"")],
    ids=["a bomb", "damaged", "an unknown coding", "no JSON"],
)
def test_a_request_that_cannot_be_read_is_recorded_by_its_answer(
    body: bytes, coding: bytes, recorder: Recorded, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server({**ASKED, "body": body})
    serve(replies(START, piece("one"), END), server, scope_of(headers=[(b"content-encoding", coding)]))
    assert recorded(recorder) == ("completed", 1)
    assert ours(caplog) == []


# A reply that does not say what it is.


def unsaid(content_type: bytes | None, *more: tuple[bytes, bytes]) -> Message:
    return {**START, "headers": [*more, *([] if content_type is None else [(b"content-type", content_type)])]}


@pytest.mark.parametrize("content_type", [None, b"", b"text/plain", b"Text/Plain; charset=utf-8"])
@pytest.mark.parametrize("question", [QUESTION, b'{"model": "tiny"}'], ids=["asked for", "unasked"])
@pytest.mark.parametrize("size", [7, 1000])
def test_events_are_told_by_their_content(
    content_type: bytes | None, question: bytes, size: int, recorder: Recorded, caplog: pytest.LogCaptureFixture
) -> None:
    body = b": hi\n\n" + b"".join(piece(word)["body"] for word in ("one", "two"))
    cut = [{**END, "body": body[at : at + size], "more_body": True} for at in range(0, len(body), size)]
    mine = [unsaid(content_type), *cut, END]
    server = Server({**ASKED, "body": question})
    serve(replies(*mine), server)
    assert server.sent == mine
    assert recorded(recorder) == ("completed", 2)
    assert ours(caplog) == []


@pytest.mark.parametrize("body", [b"", b"plain words", b'{"choices": []}', b"data: of a table\n\n"])
@pytest.mark.parametrize("asked", [True, False])
def test_a_reply_without_an_event_is_no_stream(
    body: bytes, asked: bool, recorder: Recorded, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server({**ASKED, "body": QUESTION if asked else b"{}"})
    with caplog.at_level(logging.WARNING, "otel_llm"):
        serve(replies(unsaid(b"text/plain"), {**END, "body": body}), server)
    assert [stream.outcome for stream in recorder.streams()] == ["error"] * asked
    assert len(ours(caplog)) == asked


def test_an_event_that_the_end_cuts_off_is_read(recorder: Recorded) -> None:
    serve(replies(START, {**END, "body": piece("one")["body"].rstrip()}), Server())
    assert recorded(recorder) == ("completed", 1)


@pytest.mark.parametrize("coding", [b"none", b"", b"Identity", b"gzip", b"deflate"])
@pytest.mark.parametrize("content_type", [b"text/event-stream", b"text/plain"])
def test_the_coding_of_a_reply(content_type: bytes, coding: bytes, recorder: Recorded) -> None:
    packer = zlib.compressobj(wbits=31 if coding == b"gzip" else 15)
    words = [piece(word) for word in ("one", "two")]
    end = END
    if coding in (b"gzip", b"deflate"):
        words = [{**one, "body": packer.compress(one["body"]) + packer.flush(zlib.Z_SYNC_FLUSH)} for one in words]
        end = {**END, "body": packer.flush()}
    mine = [unsaid(content_type, (b"content-encoding", coding)), *words, end]
    server = Server()
    serve(replies(*mine), server)
    assert [ours is theirs for ours, theirs in zip(server.sent, mine, strict=True)] == [True] * 4
    assert recorded(recorder) == ("completed", 2)


@pytest.mark.parametrize("coding", [b"br", b"gzip"])
def test_a_reply_that_cannot_be_unpacked(coding: bytes, recorder: Recorded, caplog: pytest.LogCaptureFixture) -> None:
    head = unsaid(b"text/event-stream", (b"content-encoding", coding))
    serve(replies(head, {**END, "body": b"\x8b\x02\x80", "more_body": True}, END), Server())
    assert recorded(recorder) == ("completed", 0)
    assert ours(caplog) == []
