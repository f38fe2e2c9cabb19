"""An event recognised by its bytes is the event that parsing finds; in doubt none is recognised."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry import context
from support.examples import examples
from support.instrumentation.fake_environment import COMMIT_NS, OFFSET_NS, FakeEnvironment
from support.instrumentation.memory import held
from support.sse_server import chunk

from otel_llm.export.records import CONTENT, REASONING
from otel_llm.instrumentation.core.committed_request import Request
from otel_llm.instrumentation.core.recording import Recording
from otel_llm.instrumentation.parse.event_template import LEARNS, EventTemplate
from otel_llm.instrumentation.parse.sse import Event, SseParser
from otel_llm.instrumentation.parse.sse_chunks import CHAT, Tap, api_of, plain_size
from otel_llm.instrumentation.segments.chunks import sized_mark
from otel_llm.instrumentation.segments.text_size import size_of, size_of_json_string

SHAPES = [
    b'data: {"choices":[{"index":0,"delta":{"content":"TEXT"},"finish_reason":null}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"reasoning_content":"TEXT"},"finish_reason":null}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"content":"TEXT","reasoning":"b"}}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"content":"a","reasoning_content":"TEXT"}}]}\n\n',
    b'data: {"choices":[{"index":1,"delta":{"content":"TEXT"},"finish_reason":null}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"content":"TEXT"},"finish_reason":"stop"}]}\n\n',
    b'data: {"error":{"type":"bad"},"choices":[{"index":0,"delta":{"content":"TEXT"}}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"content":"TEXT"}}]}\n\ndata: {"choices":[]}\n\n',
    b'event: x\r\ndata: {"choices":[{"index":0,"delta":{"content":"TEXT"}}]}\r\n\r\n',
]
TEXTS = st.lists(
    st.sampled_from(
        [b"a", b"a", b" ", b"\\n", b'\\"', b"\\\\", b"\\", b'"', b"\n", b"\r", b'","x":"', b"\n\ndata: 1\n\n"]
    ),
    max_size=3,
).map(b"".join)
"""Texts as they stand on the wire: as JSON has them, and also as no server sends them."""
OTHERS = st.sampled_from(
    [b"data: [DONE]\n\n", b": wait\n\n", b"\n", b"\r", b"data: {\n", b"data: 1\n\n", b"", b"data", b":"]
)


@st.composite
def bodies(draw: st.DrawFn) -> list[bytes]:
    """Return the pieces of a body, most of them events of one shape or of two."""
    shapes = draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=2))
    pieces = [SHAPES[0].replace(b"TEXT", b"x")]  # nothing is counted by the server
    for _ in range(draw(st.integers(2, 8))):
        text = draw(st.one_of(st.just(b"a"), TEXTS))
        piece = draw(st.sampled_from(shapes)).replace(b"TEXT", text)
        if draw(st.integers(0, 5)) == 0:
            pieces.append(draw(OTHERS))
        how = draw(st.integers(0, 7))
        at = draw(st.integers(0, len(piece)))
        pieces += [piece[:at], piece[at:]] if how == 0 else piece.splitlines(keepends=True) if how < 4 else [piece]
    return pieces


def tap(path: str) -> tuple[Tap, list[Any]]:
    host, api = FakeEnvironment(), api_of(path)
    assert api is not None
    recording = Recording(host, Request("chat m", COMMIT_NS, OFFSET_NS), api.reader())
    recording.announce(context.get_current())
    items: list[Any] = []
    recording.append = items.append
    return Tap(recording, api), items


def read(pieces: list[bytes], path: str = "/chat/completions") -> list[Any]:
    """Return the marks that the pieces of a body gave, piece by piece."""
    reader, items = tap(path)
    ends = []
    for piece in pieces:
        reader.take(piece)
        ends.append(len(items))
    marks = [sized_mark(CONTENT, told) if isinstance(told, int) else told for _, told in items]
    return [ends, marks, reader.recording.done]


@settings(max_examples=examples(1000))
@given(bodies())
def test_what_the_bytes_tell_is_what_reading_tells(pieces: list[bytes]) -> None:
    told = read(pieces)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EventTemplate, "of", lambda *_: None)
        assert read(pieces) == told


def delta(key: bytes, text: bytes, reason: bytes = b"null") -> bytes:
    return b'data: {"choices":[{"index":0,"delta":{"%s":"%s"},"finish_reason":%s}]}\n\n' % (key, text, reason)


FIRST = SHAPES[0].replace(b"TEXT", b"x")


@pytest.mark.parametrize(
    "pieces",
    [
        *([FIRST, *(shape.replace(b"TEXT", text) for text in (b"a", b"b", b"c"))] for shape in SHAPES),
        [FIRST, FIRST[:20], FIRST[20:], FIRST[20:], FIRST],
        [
            FIRST,
            delta(b"reasoning_content", b"a"),
            delta(b"content", b"a", b'"stop"'),
            delta(b"reasoning_content", b"a"),
            delta(b"reasoning_content", b"a"),
            delta(b"content", b"", b'"stop"'),
        ],
        [FIRST, SHAPES[3].replace(b"TEXT", b"b"), SHAPES[3].replace(b'"a"', b'""').replace(b"TEXT", b"b")],
    ],
)
def test_what_must_not_be_learned(pieces: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    told = read(pieces)
    monkeypatch.setattr(EventTemplate, "of", lambda *_: None)
    assert read(pieces) == told


@pytest.mark.parametrize(
    ("path", "event", "kind"),
    [
        ("/chat/completions", chunk({"content": "TEXT"}), CONTENT),
        ("/chat/completions", chunk({"reasoning_content": "TEXT"}), REASONING),
        (
            "/messages",
            {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "TEXT"}},
            REASONING,
        ),
        ("/messages", {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "TEXT"}}, CONTENT),
    ],
)
def test_the_third_of_a_kind_is_not_parsed(path: str, event: Any, kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, items = tap(path)
    wire = b"data: " + json.dumps(event).encode() + b"\n\n"
    reader.take(b"data: " + json.dumps(chunk({"content": "x"})).encode() + b"\n\n")
    reader.take(wire)
    monkeypatch.setattr(SseParser, "feed", lambda *_: pytest.fail("parsed"))
    before = len(items)
    texts = ("a", " b", "é", "{}", "x" * 1000)
    for text in texts:
        reader.take(wire.replace(b"TEXT", text.encode()))
    told = [sized_mark(CONTENT, told) if isinstance(told, int) else told for _, told in items[before:]]
    assert told == [((0, kind, -size_of(text), False),) for text in texts]


def test_a_reply_that_looks_another_way_each_time_is_not_learned_for_ever() -> None:
    parser = SseParser(lambda data: Event(data, b""))
    known = EventTemplate(parser)
    known.learn(b"\n", parser.feed(b"\n"), None)
    learned = 0
    for i in range(100):
        piece = f'data: {{"content": "a", "padding": "{"x" * i}"}}\n\n'.encode()
        assert known.of(piece) is None
        known.learn(piece, parser.feed(piece), sized_mark(CONTENT, 1))
        learned += known.of(piece) is not None
    assert learned == LEARNS


@pytest.mark.parametrize(
    "piece", [b"a", b"\\n", b'\\"', "é".encode()], ids=["letters", "escapes", "quotes", "two bytes"]
)
@pytest.mark.parametrize("ended", [True, False], ids=["ended", "cut"])
def test_a_long_text_is_matched_without_a_memory_of_its_own(piece: bytes, ended: bool) -> None:
    """A pattern that may give letters back keeps a place for each of them: 130 bytes, in the host's process."""
    text = piece * (200_000 // len(piece))
    event = b'{"choices":[{"index":0,"finish_reason":null,"delta":{"content":"' + text + b'"}}]}'
    pattern = CHAT.text
    assert pattern is not None
    event = event if ended else event.removesuffix(b'"}}]}')
    parser = SseParser(lambda data: Event(data, b""))
    template = EventTemplate(parser)
    with held() as found:
        size = plain_size(event, pattern)
        for data in [b"data: %b\n\n" % event] * 2:
            template.learn(data, parser.feed(data), sized_mark(CONTENT, 1))
    assert size == (size_of_json_string(text) if ended else 0)
    assert found.most < 8 * len(event)
