"""HTTP bodies as they stand on the connection: any way of cutting the bytes gives the same body."""

from __future__ import annotations

import gzip
import zlib

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from otel_llm.instrumentation.parse.http_body import (
    MAX_BLOCK_BYTES,
    MAX_LINE_BYTES,
    BodyError,
    HttpBody,
    coding_of,
    unpacked,
)


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
    assert (sum(sizes), max(sizes)) == (1 << 20, MAX_BLOCK_BYTES)


@pytest.mark.parametrize("wire", [b"x\r\n", b"-1\r\n", b"1" * (MAX_LINE_BYTES + 1)])
def test_what_is_no_chunk_is_an_error(wire: bytes) -> None:
    with pytest.raises(BodyError):
        list(HttpBody(chunked=True, length=None, coding="").feed(wire))


def test_a_coding_that_is_not_known_is_an_error() -> None:
    with pytest.raises(BodyError):
        HttpBody(chunked=True, length=None, coding="br")
    with pytest.raises(BodyError):
        list(HttpBody(chunked=False, length=9, coding="deflate").feed(b"not packed"))


@pytest.mark.parametrize("coding", ["", "identity", "none", " None ", "Identity, none"])
def test_codings_that_leave_a_body_as_it_is(coding: str) -> None:
    assert not coding_of(coding)
    assert unpacked(WHOLE, coding, len(WHOLE)) == WHOLE
    assert unpacked(WHOLE, coding, len(WHOLE) - 1) is None


@pytest.mark.parametrize("coding", ["gzip", "br", "gzip, none"])
def test_codings_that_do_not(coding: str) -> None:
    assert coding_of(coding)


WHOLE = b'{"stream": true}' * 9
PLAIN_DEFLATE = zlib.compressobj(wbits=-15)


@pytest.mark.parametrize(
    ("packed", "coding"),
    [
        (gzip.compress(WHOLE), "gzip"),
        (gzip.compress(WHOLE[:3]) + gzip.compress(WHOLE[3:]), "X-Gzip"),
        (gzip.compress(zlib.compress(WHOLE)), "deflate, gzip"),
        (zlib.compress(WHOLE), " Deflate "),
        (PLAIN_DEFLATE.compress(WHOLE) + PLAIN_DEFLATE.flush(), "deflate"),
        (zstandard.compress(WHOLE), "zstd"),
        (zstandard.compress(WHOLE[:3]) + zstandard.compress(WHOLE[3:]), "zstd"),
    ],
    ids=["gzip", "members", "two codings", "deflate", "deflate without a header", "zstd", "frames"],
)
def test_a_whole_body_is_unpacked_up_to_a_limit(packed: bytes, coding: str) -> None:
    assert unpacked(packed, coding, len(WHOLE)) == WHOLE
    assert unpacked(packed, coding, len(WHOLE) - 1) is None
    assert unpacked(packed[:-3], coding, 1000) != WHOLE


LONG_WINDOW = zstandard.ZstdCompressor(
    compression_params=zstandard.ZstdCompressionParameters.from_level(3, window_log=27, write_content_size=0)
)


@pytest.mark.parametrize(
    ("packed", "coding"),
    [
        (gzip.compress(bytes(1 << 24)), "gzip"),
        (zstandard.compress(bytes(1 << 24)), "zstd"),
        (LONG_WINDOW.compressobj().compress(WHOLE) + LONG_WINDOW.compressobj().flush(), "zstd"),
        (WHOLE, "gzip"),
        (WHOLE, "zstd"),
        (WHOLE, "br"),
        (WHOLE, ",".join(["gzip"] * 3)),
        (gzip.compress(b"x") * 65, "gzip"),
    ],
    ids=[
        "a bomb",
        "a bomb of zstd",
        "a long window",
        "no gzip",
        "no zstd",
        "an unknown coding",
        "many codings",
        "members",
    ],
)
def test_a_body_that_cannot_be_unpacked_is_none(packed: bytes, coding: str) -> None:
    assert not unpacked(packed, coding, 1 << 16)


@given(packed=st.binary(max_size=60), coding=st.sampled_from(["gzip", "deflate", "zstd", "gzip,zstd"]))
def test_any_bytes_are_unpacked_or_none(packed: bytes, coding: str) -> None:
    found = unpacked(packed, coding, 100)
    assert found is None or len(found) <= 100
