"""The reading of a body of events: any cut of it gives the same tokens and the same end; damage raises nothing."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from opentelemetry import context
from support.examples import SEED, examples
from support.instrumentation.event_streams import by_the_standard, cut
from support.instrumentation.fake_environment import COMMIT_NS, OFFSET_NS, FakeEnvironment
from support.instrumentation.situations import APIS, SITUATIONS

from otel_llm.instrumentation.core.committed_request import Request
from otel_llm.instrumentation.core.recording import Recording
from otel_llm.instrumentation.parse.json_bodies import JsonArray, SniffedBody
from otel_llm.instrumentation.parse.sse import MAX_EVENT_BYTES, SseParser
from otel_llm.instrumentation.parse.sse_chunks import CHAT, Tap, api_of
from otel_llm.instrumentation.parse.wires import WIRES

MUTATED = 100_000
"""Damaged bodies; the quick profile takes a part."""
Told = tuple[list[Any], object]


def told(pieces: list[bytes], path: str = "/chat/completions") -> Told:
    """Return the readings of a body fed in pieces, and the outcome."""
    host = FakeEnvironment()
    api = api_of(path, WIRES)
    assert api is not None
    recording = Recording(host, Request("chat m", COMMIT_NS, OFFSET_NS), api.reader())
    recording.announce(context.get_current())
    items: list[Any] = []
    recording.append = lambda item: items.append(item)
    tap = Tap(recording, api)
    for piece in pieces:
        tap.take(piece)
    tap.ended()
    assert host.bugs == []
    marks = [reading if isinstance(reading, int) else list(reading) for _, reading in items]
    sized = [[(0, 0, -mark, False)] if isinstance(mark, int) else mark for mark in marks]
    outcomes = [
        dict(record.attributes).get("otel_llm.outcome") for record in host.sent if hasattr(record, "attributes")
    ]
    return [mark for reading in sized for mark in reading], [one for one in outcomes if one is not None]


def chunk(text: str, reason: str | None = None) -> bytes:
    return json.dumps({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": reason}]}).encode()


TEXTS = st.sampled_from(["a", "word ", "é", "{", '"}', "\\", "data: ", "[DONE]"])
CHUNKS = st.builds(chunk, TEXTS, st.sampled_from([None, None, None, "", "stop"]))
ENDINGS = st.sampled_from([b"\n", b"\r", b"\r\n"])
BLANKS = st.sampled_from([1, 1, 1, 0, 2])


@st.composite
def events(draw: st.DrawFn) -> bytes:
    """Return an event: whole on a line or on several, with a blank line behind it, two, or none."""
    end, blanks = draw(ENDINGS), draw(BLANKS)
    data = draw(CHUNKS)
    if draw(st.booleans()):
        lines = [b"data: " + data]
    else:
        indented = json.dumps(json.loads(data), indent=1, ensure_ascii=draw(st.booleans())).encode()
        lines, blanks = [b"data: " + line for line in indented.splitlines()], max(blanks, 1)
    before = draw(st.sampled_from([[], [], [b": ping"], [b"event: x", b"id: 1"], [b"retry: 5"]]))
    return end.join([*before, *lines, *[b""] * (blanks + 1)])


OTHERS = st.sampled_from([b"data: [DONE]\n\n", b": wait\n\n", b"data: \n\n", b"data\n", b"data: 7\n\n", b"\n"])
BODIES = st.builds(
    lambda first, parts: first + b"".join(parts),
    st.sampled_from([b"", b"\xef\xbb\xbf", b"\n\n", b"  "]),
    st.lists(events() | OTHERS, max_size=8),
)


@given(BODIES, st.lists(st.integers(0, 10_000), max_size=12))
@example(b"data: " + chunk("a") + b"\r\n\r\ndata: " + chunk("b") + b"\r\n", [60, 90, 91, 92])
@example(b"data: " + chunk("a") + b"\ndata: " + chunk("b") + b"\ndata: [DONE]", [3])
@example(b"data: " + chunk("a") + b"\n\ndata\ndata: " + chunk("b") + b"\ndata: [DONE]\n\n", [])
@settings(max_examples=examples(400))
def test_any_cut_gives_the_same_reading(body: bytes, at: list[int]) -> None:
    whole = told([body])
    for pieces in (cut(body, at), [bytes([byte]) for byte in body]):
        assert told(pieces) == whole


@given(st.lists(CHUNKS, min_size=1, max_size=6))
@settings(max_examples=examples(100))
def test_an_event_reads_the_same_on_one_line_and_on_several(chunks: list[bytes]) -> None:
    one_line = b"".join(b"data: " + one + b"\n\n" for one in chunks)
    several = b"".join(
        b"".join(b"data: " + line + b"\n" for line in json.dumps(json.loads(one), indent=2).encode().splitlines())
        + b"\n"
        for one in chunks
    )
    without_blanks = one_line.replace(b"\n\n", b"\n")
    array = b"[" + b", ".join(chunks) + b"]"
    expected = told([one_line])[0]
    assert told([several])[0] == told([without_blanks])[0] == told([array])[0] == expected


@pytest.mark.parametrize("name", SITUATIONS)
def test_a_situation_reads_the_same_in_any_cut(name: str) -> None:
    chance = random.Random(name)
    for api in SITUATIONS[name].apis:
        path = APIS[api].path.partition("?")[0]
        body = b"".join(SITUATIONS[name].body(APIS[api]))
        whole = told([body], path)
        for _ in range(20):
            assert told(cut(body, [chance.randrange(len(body) + 1) for _ in range(6)]), path) == whole


def mutated(chance: random.Random, body: bytes) -> bytes:
    """Return a body with a few bytes changed, dropped, doubled, or moved."""
    found = bytearray(body)
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(len(found) + 1)
        how = chance.randrange(5)
        if how == 0:
            found[at : at + 1] = bytes([chance.choice(b'\n\r{}[]":,\\ \x00\xff\xef')])
        elif how == 1:
            del found[at : at + chance.randint(1, 40)]
        elif how == 2:
            found[at:at] = chance.choice([b"\n", b"\r", b"data: ", b"\n\n", b"\xef\xbb\xbf", b'"', b"{", b"}" * 3])
        elif how == 3:
            found[at:at] = found[at : at + chance.randint(1, 60)]
        else:
            found[at:at] = bytes(chance.randrange(256) for _ in range(4))
    return bytes(found)


def test_a_damaged_body_is_read_by_the_standard_and_the_same_in_any_cut() -> None:
    chance = random.Random(SEED)
    bodies = [b"".join(one.body(APIS["chat"])) for one in SITUATIONS.values()]
    for _ in range(examples(MUTATED)):
        body = mutated(chance, chance.choice(bodies))
        pieces = cut(body, [chance.randrange(len(body) + 1) for _ in range(4)])
        assert (SseParser().feed(body), 0) == by_the_standard(body, MAX_EVENT_BYTES)
        for parser in (
            lambda: SseParser(),
            lambda: SseParser(lambda data: data if data.startswith(b"{") else None, early=True),
            lambda: SniffedBody(),
            lambda: JsonArray(),
        ):
            whole, parts = parser(), parser()
            expected = [*whole.feed(body), *whole.end()]
            assert [event for piece in pieces for event in parts.feed(piece)] + parts.end() == expected


def test_the_plain_path_of_a_reply_is_read_like_any_other() -> None:
    assert CHAT.text is not None
    body = b"".join(b"data: " + chunk(text) + b"\n\n" for text in ("a", "b", "c", "d"))
    assert told([body]) == told([b"data: " + chunk(text) + b"\n\n" for text in ("a", "b", "c", "d")])
