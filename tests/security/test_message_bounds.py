"""An export request costs what its bytes justify, however it is made; what applications send is far from the bounds."""

from __future__ import annotations

import gzip
import json
import tracemalloc

import grpc
import pytest
from support.collector.fake_evaluator import FakeEvaluator
from support.core.dense_exports import TINY, dense, tiny, verdicts
from support.core.kernel_modes import shown_in
from support.otlp import T0_NS, event_of, export, request_span
from support.patience import WAIT_S

from otel_llm import semconv
from otel_llm.collector.receive.errors import BadRequestError
from otel_llm.collector.receive.grpc_worker.grpc_receiver import EXPORT, GrpcReceiver
from otel_llm.collector.receive.gunzip import FREE_BYTES, MAX_RATIO, gunzip
from otel_llm.collector.settings import Limits
from otel_llm.core.kernel import COMPILED
from otel_llm.core.scanning import span_columns as column
from otel_llm.core.scanning.parts import FREE_NS, NS_PER_BYTE
from otel_llm.formats.foreign.chunk_events import INFERENCE_EVENTS
from otel_llm.formats.foreign.inference import INFERENCE_ATTRIBUTES
from otel_llm.formats.otlp.export_json import parse_json
from otel_llm.formats.otlp.export_request import read
from otel_llm.formats.otlp.length_delimited import refuse_many_parts
from otel_llm.formats.otlp.scanned import scan
from otel_llm.formats.records import DecodeError
from otel_llm.shared.errors import TooLargeError
from otel_llm.shared.web.address import Address

MIB = 2**20
MESSAGE_BYTES = Limits().message_bytes
DENSE = dense()


@pytest.mark.parametrize("kind", TINY)
@pytest.mark.parametrize("count", [20_000, 199_990, 7_000_000])
def test_many_tiny_parts_are_refused_before_an_object_of_each_is_made(kind: str, count: int) -> None:
    raw = tiny(kind, count)
    read(b"")
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError, match="more small or empty"):
            read(raw)
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("piece", [b"{}", b"[]", b"{ }", b"0", b'""', b"null"])
@pytest.mark.parametrize("key", [b"resourceSpans", b"x"])
def test_json_of_tiny_pieces_is_refused(key: bytes, piece: bytes) -> None:
    with pytest.raises(DecodeError, match="more small or empty"):
        parse_json(b'{"%b":[%b]}' % (key, b",".join([piece] * 20_000)))


@pytest.mark.parametrize("name", DENSE)
def test_what_applications_send_is_let_in_at_any_size_and_would_be_if_it_were_twice_as_dense(name: str) -> None:
    raw = DENSE[name]
    whole = raw * (MESSAGE_BYTES // len(raw))
    assert len(whole) > MESSAGE_BYTES // 2
    refuse_many_parts(whole, free_ns=-NS_PER_BYTE * len(whole) // 2)
    batch = read(raw)
    assert batch.spans > 50
    assert not batch.refused


def test_the_bound_on_compression_is_four_times_the_best_that_applications_reach() -> None:
    ratios = {name: len(raw) / len(gzip.compress(raw, 9)) for name, raw in DENSE.items()}
    assert 4 * max(ratios.values()) <= MAX_RATIO, ratios


def test_a_bomb_is_refused_while_it_expands() -> None:
    bomb = gzip.compress(bytes(15 * MIB), 9)
    tracemalloc.start()
    try:
        with pytest.raises(TooLargeError, match=f"{MAX_RATIO} times"):
            gunzip(bomb, MESSAGE_BYTES)
        assert tracemalloc.get_traced_memory()[1] < 2 * MAX_RATIO * len(bomb) + 2 * FREE_BYTES < 16 * MIB
    finally:
        tracemalloc.stop()
    small = bytes(FREE_BYTES)
    assert gunzip(gzip.compress(small, 9), MESSAGE_BYTES) == small
    with pytest.raises(TooLargeError, match="1000 bytes"):
        gunzip(gzip.compress(bytes(1001)), 1000)
    for broken in (gzip.compress(small)[:-1], gzip.compress(small) + b"\0", b"\x1f\x8bno"):
        with pytest.raises(BadRequestError):
            gunzip(broken, MESSAGE_BYTES)
    for raw in DENSE.values():
        assert gunzip(gzip.compress(raw), MESSAGE_BYTES) == raw


def test_the_grpc_receiver_decompresses_what_is_no_bomb() -> None:
    behind = FakeEvaluator()
    receiver = GrpcReceiver(Address("127.0.0.1", 0), behind)
    receiver.start()
    try:
        with grpc.insecure_channel(str(receiver.address)) as channel:
            call = channel.unary_unary(EXPORT)
            good = export(request_span()).SerializeToString()
            for compression in (grpc.Compression.Gzip, grpc.Compression.NoCompression):
                assert call(good, compression=compression, timeout=WAIT_S) == b""
            with pytest.raises(grpc.RpcError) as raised:
                call(bytes(15 * MIB), compression=grpc.Compression.Gzip, timeout=WAIT_S)
            assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "times its size" in raised.value.details()
            with pytest.raises(grpc.RpcError) as raised:
                call(good, compression=grpc.Compression.Deflate, timeout=WAIT_S)
            assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert len(behind.messages) == 2
    finally:
        receiver.stop(0)


NAMES = INFERENCE_ATTRIBUTES


@pytest.mark.skipif(not COMPILED, reason="the scan is not used in plain mode")
@pytest.mark.parametrize("name", sorted(NAMES | INFERENCE_EVENTS))
def test_no_span_of_a_model_is_passed_over(name: str) -> None:
    span = request_span(name="x", attributes={name: "chat"} if name in NAMES else {})
    if name in INFERENCE_EVENTS:
        span.events.append(event_of((name, T0_NS)))
    found = scan(export(span).SerializeToString())
    assert found is not None
    assert found.spans[0, column.CLASS] != column.FOREIGN


@pytest.mark.skipif(not COMPILED, reason="the scan is not used in plain mode")
def test_spans_that_nobody_looks_at_are_checked_and_counted() -> None:
    spans = [request_span(request=number, name="GET /", attributes={"http.route": "/"}) for number in range(1, 9)]
    raw = export(*spans).SerializeToString()
    found = scan(raw)
    assert found is not None
    assert (found.spans[:, column.CLASS] == column.FOREIGN).all()
    assert read(raw).ignored == 8
    with pytest.raises(DecodeError, match="not an OTLP"):
        read(raw.replace(b"http.route", b"http.rout\xff"))


def test_compiled_and_plain_refuse_the_same_near_the_bound() -> None:
    here = json.loads(verdicts(5, 120))
    assert 20 < here.count(["many"]) < 100
    there = json.loads(shown_in({"OTEL_LLM_CORE": "plain"}, "support.core.dense_exports", "verdicts(5, 120)"))
    assert here == there


def test_a_small_message_is_not_suspected() -> None:
    assert FREE_NS > 0
    refuse_many_parts(tiny("spans", 50) + tiny("attributes", 500))
    assert read(export(request_span(attributes={semconv.GEN_AI_OPERATION_NAME: "chat"})).SerializeToString()).requests
