"""HTTP bodies as they stand on the connection: any way of cutting the bytes gives the same body."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_llm.instrumentation.parse.http_body import MAX_LINE_BYTES, MAX_PIECE_BYTES, BodyError, HttpBody


def chunked(pieces: list[bytes]) -> bytes:
    """Return the pieces as chunks, with an extension and a trailer."""
    chunks = [b"%x;a=b\r\n%b\r\n" % (len(piece), piece) for piece in pieces if piece]
    return b"".join([*chunks, b"0\r\nX-Trailer: 1\r\n\r\n"])


def fed(body: HttpBody, wire: bytes, cuts: list[int]) -> bytes:
    edges = sorted({0, *(cut % (len(wire) + 1) for cut in cuts), len(wire)})
    got = b""
    for start, end in zip(edges, [*edges[1:], None], strict=True):
        got += b"".join(body.feed(wire[start:end]))
    return got


pieces = st.lists(st.binary(max_size=20) | st.just(b"\r\n") | st.just(b"0\r\n\r\n"), max_size=8)
cuts = st.lists(st.integers(0, 1000), max_size=12)


@given(pieces=pieces, cuts=cuts, packed=st.booleans())
def test_chunks_give_the_body_however_they_are_cut(pieces: list[bytes], cuts: list[int], packed: bool) -> None:
    whole = b"".join(pieces)
    if packed:
        packer = zlib.compressobj(wbits=31)
        pieces = [packer.compress(piece) + packer.flush(zlib.Z_SYNC_FLUSH) for piece in pieces] + [packer.flush()]
    body = HttpBody(chunked=True, length=None, coding="gzip" if packed else "")
    assert fed(body, chunked(pieces) + b"what follows", cuts) == whole
    assert body.complete


@given(whole=st.binary(max_size=50), cuts=cuts)
def test_a_length_ends_the_body(whole: bytes, cuts: list[int]) -> None:
    body = HttpBody(chunked=False, length=len(whole), coding="identity")
    assert fed(body, whole[:-1], cuts) == whole[:-1]
    assert body.complete == (not whole)
    assert b"".join(body.feed(whole[-1:] + b"what follows")) == whole[-1:]
    assert body.complete


def test_a_body_without_a_length_goes_on() -> None:
    body = HttpBody(chunked=False, length=None, coding="")
    assert fed(body, b"abc", [1]) == b"abc"
    assert not body.complete


def test_a_small_piece_cannot_fill_the_memory() -> None:
    body = HttpBody(chunked=False, length=None, coding=" GZIP ")
    packer = zlib.compressobj(wbits=31)
    sizes = [len(piece) for piece in body.feed(packer.compress(bytes(1 << 20)) + packer.flush())]
    assert (sum(sizes), max(sizes)) == (1 << 20, MAX_PIECE_BYTES)


@pytest.mark.parametrize("wire", [b"x\r\n", b"-1\r\n", b"1" * (MAX_LINE_BYTES + 1)])
def test_what_is_no_chunk_is_an_error(wire: bytes) -> None:
    with pytest.raises(BodyError):
        list(HttpBody(chunked=True, length=None, coding="").feed(wire))


def test_a_coding_that_is_not_known_is_an_error() -> None:
    with pytest.raises(BodyError):
        HttpBody(chunked=True, length=None, coding="br")
    with pytest.raises(BodyError):
        list(HttpBody(chunked=False, length=9, coding="deflate").feed(b"not packed"))
