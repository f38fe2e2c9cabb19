"""Server-sent events: any cut of the bytes gives the events of the whole, and nothing makes the parser hold more."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.instrumentation.event_streams import BOM, by_the_standard, cut
from support.instrumentation.memory import NOISE_BYTES, held

from otel_llm.instrumentation.parse.sse import MAX_EVENT_BYTES, SseParser, begins_events

SMALL = 24

PIECES = st.sampled_from(
    [
        *[b"data: ", b"data:", b"data", b"dat", b"event: x", b": ", b":", b" ", b"a", b"xyz", b"[DONE]", b"long" * 8],
        *[b"\r", b"\n", b"\r\n", b"\n\n", b"\r\r", b"\r\n\r\n", BOM, b"\0"],
        *["\u2028\u0085".encode(), b"\x0b\x0c\x1c"],
    ]
)
BODIES = st.lists(PIECES | st.binary(max_size=3), max_size=40).map(b"".join)


@given(BODIES, st.lists(st.integers(0, 1000), max_size=12))
@example(b"data: a\r\n\r\ndata: b\r\n\r\n", [8, 9, 10])
@example(b"data: a\r\ndata: b\r\n\r\n", [8])
@example(BOM + b"data: a\n\n", [1, 2])
@example(BOM + b"data: " + b"x" * (SMALL - 7) + b"\n\n", [1, 2])
@example(b"data: " + b"x" * 30 + b"\n\ndata: y\n\n", [3, 9, 31])
def test_any_cut_of_a_body_gives_the_events_of_the_whole(body: bytes, at: list[int]) -> None:
    expected, lost = by_the_standard(body, SMALL)
    for pieces in ([body], cut(body, at), [bytes([byte]) for byte in body]):
        parser = SseParser(most=SMALL)
        assert [event for piece in pieces for event in parser.feed(piece)] == expected
        assert parser.lost == lost


@pytest.mark.parametrize(
    ("body", "events"),
    [
        (b"data: one\n\ndata: two\n\n", [b"one", b"two"]),
        (b"data: one\rdata: two\r\r", [b"one\ntwo"]),
        (b"data:one\r\ndata:  two\r\n\r\n", [b"one\n two"]),
        (b"data\n\ndata:\n\n", [b"", b""]),
        (b": ping\n\nevent: x\nid: 1\nretry: 5\n\n", []),
        (b"event: message\ndata: x\n\n", [b"x"]),
        (BOM + b"data: x\n\n" + BOM + b"data: y\n\n", [b"x"]),
        (b" data: x\n\nDATA: y\n\ndatas: z\n\n", []),
        ("data: a\u2028b\u0085c\x0bd\n\n".encode(), ["a\u2028b\u0085c\x0bd".encode()]),
        (b"data: x\n", []),
    ],
)
def test_the_standard_s_cases(body: bytes, events: list[bytes]) -> None:
    assert SseParser().feed(body) == events


def test_an_event_is_there_with_the_first_byte_that_completes_its_blank_line() -> None:
    parser = SseParser()
    assert parser.feed(b"data: x\r\n") == []
    assert parser.feed(b"\r") == [b"x"]
    assert parser.feed(b"\n") == []  # it belongs to the blank line
    assert parser.feed(b"data: y\n\n") == [b"y"]


def test_what_the_end_of_the_body_left_unfinished_is_given_out_by_end_alone() -> None:
    for body in (b"data: x", b"data: x\n", b"data: x\r"):
        parser = SseParser()
        assert parser.feed(body) == []
        assert parser.end() == [b"x"]
        assert parser.end() == []


@pytest.mark.parametrize("line", [b"data: " + b"x" * 4090, b": " + b"x" * 4094, b"x" * 4096])
def test_a_line_without_an_end_is_not_held(line: bytes) -> None:
    parser = SseParser()
    parser.feed(b"data: before\n\n")
    with held() as memory:
        for _ in range(2 * MAX_EVENT_BYTES // 4096):
            assert parser.feed(line) == []
    assert memory.most <= 2 * MAX_EVENT_BYTES
    assert memory.now < NOISE_BYTES
    assert parser.feed(b"\n\ndata: after\n\n") == [b"after"]
    assert parser.lost == line.startswith(b"data")


@pytest.mark.parametrize("line", [b"data: xxxx\n", b"data:\n", b"data\n"])
def test_an_event_without_an_end_is_not_held(line: bytes) -> None:
    parser = SseParser(most=10_000)
    with held() as memory:
        for _ in range(20_000):
            assert parser.feed(line) == []
    assert memory.now < NOISE_BYTES
    assert parser.feed(b"\ndata: after\n\n") == [b"after"]
    assert parser.lost == 1


def test_bytes_that_are_no_events_give_none_and_no_error() -> None:
    noise = random.Random(1).randbytes(50_000).replace(b"data", b"")
    parser = SseParser()
    assert parser.feed(noise) == []


@pytest.mark.parametrize("begins", [b"", b"\xef\xbb\xbf", b"\n", b"\r\n\r\n"])
@pytest.mark.parametrize("line", [b"data: x", b"data:", b"event: m", b"id: 1", b"retry: 5", b": ping", b":"])
def test_a_stream_of_events_is_known_by_its_first_bytes(begins: bytes, line: bytes) -> None:
    body = begins + line
    found = [begins_events(body[:size]) for size in range(len(body) + 1)]
    assert found == sorted(found, key=[None, True].index)
    assert found[-1] is True


@pytest.mark.parametrize("body", [b"{", b"[", b"<html>", b"database", b"data x", b" data: x", b"\xff", b"\n" * 2000])
def test_another_body_is_known_too(body: bytes) -> None:
    found = [begins_events(body[:size]) for size in range(len(body) + 1)]
    assert found == sorted(found, key=[None, False].index)
    assert found[-1] is False
