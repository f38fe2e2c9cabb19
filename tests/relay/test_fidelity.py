"""What HTTP carries beside bodies passes both ways: bytes of headers, trailers, early hints, lengths of no body."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.relay.raw_backend import Answer, RawBackend, ask
from support.relay.rig import rig

OWNED = b'{"model":"m","stream":true,"messages":[]}'
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"
EVENTS = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
FORMS = ["passed", "owned"]


def post(form: str, *lines: bytes, body: bytes | None = None, version: bytes = b"1.1") -> bytes:
    """Return a request that is owned, or passed on."""
    path = b"/v1/chat/completions" if form == "owned" else b"/v1/embeddings"
    body = OWNED if body is None else body
    head = [
        b"POST " + path + b" HTTP/" + version,
        b"Host: h",
        b"Connection: close",
        b"Content-Length: %d" % len(body),
        *lines,
    ]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


def answered(form: str, *lines: bytes, trailers: bytes = b"") -> bytes:
    """Return a backend's answer: an event stream, or JSON."""
    kind = [b"Content-Type: text/event-stream"] if form == "owned" else []
    body = EVENTS if form == "owned" else b"{}"
    head = b"".join(line + b"\r\n" for line in [*kind, *lines])
    return CHUNKED + head + b"\r\n%x\r\n%s\r\n0\r\n%s\r\n" % (len(body), body, trailers)


def through(folder: Path, request: bytes, answer: Answer) -> tuple[bytes, list[bytes]]:
    """Return the bytes that a client gets, and those of the requests that the backend got."""

    async def go() -> tuple[bytes, list[bytes]]:
        backend = RawBackend(lambda _connection, _request: answer)
        async with rig(folder, backend) as running:
            got = await ask(running.url, request)
        return got, [one for _, one in backend.requests]

    return asyncio.run(go())


@pytest.mark.parametrize("form", FORMS)
def test_the_bytes_of_headers_pass_both_ways(tmp_path: Path, form: str) -> None:
    lines = [b"X-Latin: caf\xe9", b"X-Utf: caf\xc3\xa9", b"X-Any: \xff\xfe\x80"]
    got, (asked,) = through(tmp_path, post(form, *lines), answered(form, *lines))
    for line in lines:
        assert line + b"\r\n" in asked
        assert line + b"\r\n" in got


def test_the_bytes_of_headers_pass_without_a_body(tmp_path: Path) -> None:
    request = b"GET /v1/files HTTP/1.1\r\nHost: h\r\nConnection: close\r\nX-Latin: \xe9\r\n\r\n"
    got, (asked,) = through(tmp_path, request, b"HTTP/1.1 200 Tr\xe8s bien\r\nContent-Length: 0\r\nX: \xe9\r\n\r\n")
    assert b"\r\nX-Latin: \xe9\r\n" in asked
    assert got.startswith(b"HTTP/1.1 200 Tr\xe8s bien\r\n")
    assert b"\r\nX: \xe9\r\n" in got


@pytest.mark.parametrize("form", FORMS)
def test_no_content_type_is_added(tmp_path: Path, form: str) -> None:
    got, (asked,) = through(tmp_path, post(form), answered("passed"))
    assert got.startswith(b"HTTP/1.1 200")
    assert b"content-type" not in got.lower()
    assert b"content-type" not in asked.lower()


def test_no_content_type_is_added_to_a_chunked_request(tmp_path: Path) -> None:
    request = b"PUT /v1/files HTTP/1.1\r\nHost: h\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    got, (asked,) = through(tmp_path, request + b"3\r\nabc\r\n0\r\n\r\n", answered("passed"))
    assert got.startswith(b"HTTP/1.1 200")
    assert b"content-type" not in asked.lower()


@pytest.mark.parametrize("form", FORMS)
def test_trailers_of_an_answer_pass(tmp_path: Path, form: str) -> None:
    trailers = b"X-Sum: 12\r\nX-Latin: caf\xe9\r\n"
    got, _ = through(tmp_path, post(form), answered(form, b"Trailer: X-Sum, X-Latin", trailers=trailers))
    assert got.endswith(b"\r\n0\r\n" + trailers + b"\r\n")
    assert b"\r\nTrailer: X-Sum, X-Latin\r\n" in got


def chunked(form: str, *parts: bytes, trailers: bytes = b"") -> bytes:
    """Return a request whose body comes in chunks."""
    head = post(form, b"Transfer-Encoding: chunked", b"Trailer: X-Sum", body=b"").replace(b"Content-Length: 0\r\n", b"")
    return head + b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n" + trailers + b"\r\n"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("parts", [(OWNED,), (OWNED[:9], OWNED[9:] + b" " * 100_000)], ids=["short", "long"])
def test_trailers_of_a_request_pass(tmp_path: Path, form: str, parts: tuple[bytes, ...]) -> None:
    trailers = b"X-Sum: 12\r\nX-Latin: caf\xe9\r\n"
    left_out = b"Authorization: Bearer x\r\nBaggage: llm.slo_class=a\r\nContent-Type: a/b\r\n"
    _, (asked,) = through(tmp_path, chunked(form, *parts, trailers=left_out + trailers), answered(form))
    head, _, body = asked.partition(b"\r\n\r\n")
    assert body.endswith(b"\r\n0\r\n" + trailers + b"\r\n")
    sent = body.removesuffix(b"0\r\n" + trailers + b"\r\n")
    assert b"".join(sent.split(b"\r\n")[1::2]) == b"".join(parts)
    assert b"\r\nTrailer: X-Sum, X-Latin" in head
    assert b"content-length" not in head.lower()


def test_a_request_in_chunks_without_trailers_has_a_length(tmp_path: Path) -> None:
    _, (asked,) = through(tmp_path, chunked("passed", OWNED), answered("passed"))
    assert asked.endswith(b"\r\n\r\n" + OWNED)
    assert b"railer" not in asked


def test_trailers_are_not_taken_from_the_request_behind(tmp_path: Path) -> None:
    async def go() -> None:
        backend = RawBackend(lambda _connection, _request: answered("passed"))
        async with rig(tmp_path, backend) as running:
            first = chunked("passed", OWNED).replace(b"Connection: close\r\n", b"")
            await ask(running.url, first + chunked("passed", b"{}", trailers=b"X-Sum: 1\r\n"))
        one, two = [request for _, request in backend.requests]
        assert b"X-Sum" not in one
        assert two.endswith(b"0\r\nX-Sum: 1\r\n\r\n")

    asyncio.run(go())


def test_early_hints_pass_before_the_answer(tmp_path: Path) -> None:
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n"
    for form in FORMS:
        got, _ = through(tmp_path, post(form), hints + answered(form))
        assert got.startswith(hints + b"HTTP/1.1 200")
        got, _ = through(tmp_path, post(form, version=b"1.0"), hints + answered(form))
        assert got.startswith(b"HTTP/1.0 200")


def test_a_304_keeps_its_length(tmp_path: Path) -> None:
    request = b"GET /v1/files/1 HTTP/1.1\r\nHost: h\r\nConnection: close\r\nIf-None-Match: x\r\n\r\n"
    got, _ = through(tmp_path, request, b"HTTP/1.1 304 Not Modified\r\nContent-Length: 123\r\nETag: x\r\n\r\n")
    assert got.startswith(b"HTTP/1.1 304")
    assert b"\r\nContent-Length: 123\r\n" in got
    assert got.endswith(b"\r\n\r\n")
    assert b"ransfer-" not in got


def test_the_answer_to_head_keeps_its_length(tmp_path: Path) -> None:
    request = b"HEAD /v1/files/1 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
    got, _ = through(tmp_path, request, b"HTTP/1.1 200 OK\r\nContent-Length: 123\r\n\r\n")
    assert b"\r\nContent-Length: 123\r\n" in got
    assert got.endswith(b"\r\n\r\n")


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
@pytest.mark.parametrize("form", FORMS)
def test_only_http_1_1_is_told_to_continue(tmp_path: Path, form: str, version: bytes) -> None:
    request = post(form, b"Expect: 100-continue", version=version)
    got, (asked,) = through(tmp_path, request, answered(form))
    assert (b"HTTP/1.1 100 Continue\r\n\r\n" in got) is (version == b"1.1")
    assert b"expect" not in asked.lower()
    assert b"HTTP/%s 200" % version in got


@pytest.mark.parametrize("form", FORMS)
def test_a_post_on_a_connection_that_the_backend_had_closed_is_sent_once_more(tmp_path: Path, form: str) -> None:
    async def go() -> None:
        seen = list[int]()

        def answer(connection: int, _request: bytes) -> Answer:
            seen.append(connection)
            return None if seen.count(connection) > 1 else answered(form)

        async with rig(tmp_path, RawBackend(answer)) as running:
            for _ in range(3):
                assert (await ask(running.url, post(form))).split()[1] == b"200"
            assert seen == [0, 0, 1, 2]  # the second on the first one's connection, and once more on its own
            metrics = await running.metrics()
            assert not any(name.startswith("otel_llm_relay_failovers_total") for name in metrics)

    asyncio.run(go())


def test_a_post_that_breaks_a_new_connection_is_not_sent_again(tmp_path: Path) -> None:
    got, asked = through(tmp_path, post("passed"), None)
    assert got.split()[1] == b"502"
    assert len(asked) == 1
