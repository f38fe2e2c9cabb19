"""Refused exports are counted once each, by reason."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from threading import Event, Thread

import grpc
import pytest
from support.collector.fake_evaluator import FakeEvaluator
from support.collector.http_client import PROTOBUF, RAW, connect, head, otlp_listener, rest, send, serving
from support.commands import collector, wait_until
from support.patience import WAIT_S

from otel_llm.collector.receive.errors import ANSWERS, BusyError, InternalError
from otel_llm.collector.receive.grpc_worker.grpc_receiver import EXPORT, GrpcReceiver
from otel_llm.collector.receive.otlp_http import otlp_app
from otel_llm.collector.receive.refusal_counts import BEHIND, NOT_RECEIVED, SOURCE, RefusalCounts
from otel_llm.collector.receive.senders import Accept, Sender
from otel_llm.collector.settings import Limits
from otel_llm.journal.journal_errors import JournalError
from otel_llm.shared.errors import RefusalError, UnavailableError
from otel_llm.shared.web.address import Address
from otel_llm.shared.web.tokens import Tokens

SECRET = "a-token-of-this-test"
BEARER = f"Bearer {SECRET}"
LIMITS = Limits(message_bytes=2**16, body_s=0.5, concurrent_exports=1, queued_exports=1)
METRICS = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export"
FLOW = ("behind", "streams", "stopping")
"""What the flow counts itself."""


class Gate:
    """A flow that pauses until it is released."""

    def __init__(self) -> None:
        self.go_on = Event()

    def __call__(self, raw: bytes, _sender: Sender) -> bytes:
        assert self.go_on.wait(WAIT_S)
        return b""


@pytest.fixture
def refused() -> RefusalCounts:
    return RefusalCounts()


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    (tmp_path / "tokens").write_text(f"{SECRET}\n")
    return Tokens(tmp_path / "tokens")


def counted(refused: RefusalCounts) -> dict[str, int]:
    return {key.removeprefix(SOURCE): number for key, number in refused.counts().items() if number}


@contextmanager
def grpc_listener(
    refused: RefusalCounts, accept: Accept | None = None, tokens: Tokens | None = None
) -> Iterator[tuple[GrpcReceiver, grpc.Channel]]:
    flow = refused.except_of_flow(accept or FakeEvaluator())
    receiver = GrpcReceiver(Address("127.0.0.1", 0), flow, limits=LIMITS, tokens=tokens, refused=refused)
    receiver.start()
    options = [("grpc.use_local_subchannel_pool", 1)]
    try:
        with grpc.insecure_channel(str(receiver.address), options=options) as channel:
            yield receiver, channel
    finally:
        receiver.stop(0)


@contextmanager
def http_listener(refused: RefusalCounts, accept: Accept | None = None, tokens: Tokens | None = None) -> Iterator[int]:
    flow = refused.except_of_flow(accept or FakeEvaluator())
    app = otlp_app(flow, limits=LIMITS, tokens=tokens, origins=frozenset({"https://ours.example"}), refused=refused)
    with serving(otlp_listener(limits=LIMITS, app=app)) as server:
        yield server.port


def export(channel: grpc.Channel, raw: bytes = RAW, method: str = EXPORT, token: str = BEARER) -> grpc.StatusCode:
    try:
        channel.unary_unary(method)(raw, timeout=WAIT_S, metadata=[("authorization", token)])
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def raising(error: Exception) -> Accept:
    def accept(raw: bytes, _sender: Sender) -> bytes:
        raise error

    return accept


def test_at_the_grpc_receiver(refused: RefusalCounts, tokens: Tokens) -> None:
    with grpc_listener(refused, tokens=tokens) as (_, channel):
        export(channel)
        assert counted(refused) == {}
        export(channel, token="Bearer no")
        export(channel, raw=b"\xff")
        export(channel, method=METRICS)
        with pytest.raises(grpc.RpcError):
            channel.stream_unary(EXPORT)(iter(()), timeout=WAIT_S, metadata=[("authorization", BEARER)])
        assert counted(refused) == {"unauthenticated": 1, "malformed": 1, "unsupported": 1, NOT_RECEIVED: 1}


def test_at_the_grpc_receiver_a_truncated_message(refused: RefusalCounts) -> None:
    stop = Event()

    def nothing() -> Iterator[bytes]:
        stop.wait(WAIT_S)
        yield from ()

    with grpc_listener(refused) as (_, channel):
        assert export(channel, bytes(2**17)) is grpc.StatusCode.RESOURCE_EXHAUSTED
        wait_until("seen", lambda: counted(refused) == {NOT_RECEIVED: 1})
        with pytest.raises(grpc.RpcError):
            channel.stream_unary(EXPORT)(nothing(), timeout=WAIT_S)
        wait_until("given up", lambda: counted(refused) == {NOT_RECEIVED: 1, "too_slow": 1})
        assert export(channel) is grpc.StatusCode.OK
    stop.set()


def test_at_the_http_receiver(refused: RefusalCounts, tokens: Tokens) -> None:
    fine = PROTOBUF | {"Authorization": BEARER}
    zipped = fine | {"Content-Encoding": "gzip"}
    cases: list[tuple[bytes, Mapping[str, str], int, str]] = [
        (RAW, PROTOBUF, 401, "unauthenticated"),
        (RAW, fine | {"Origin": "https://evil.example"}, 403, "forbidden"),
        (b"\xff", fine, 400, "malformed"),
        (b"no gzip", zipped, 400, "malformed"),
        (RAW, fine | {"Content-Type": "text/plain"}, 415, "unsupported"),
        (RAW, fine | {"Content-Encoding": "br"}, 415, "unsupported"),
        (bytes(2**17), fine, 413, "too_large"),
        (gzip.compress(bytes(2**17)), zipped, 413, "too_large"),
    ]
    with http_listener(refused, tokens=tokens) as port:
        assert send(port, headers=fine)[0] == 200
        assert send(port, "GET")[0] == 405
        assert send(port, "GET", "/favicon.ico")[0] == 404
        assert counted(refused) == {}  # these were no exports
        for body, headers, status, reason in cases:
            before = counted(refused)
            assert send(port, body=body, headers=headers)[0] == status
            assert counted(refused) == before | {reason: before.get(reason, 0) + 1}
        before = counted(refused)
        assert send(port, path="/v1/metrics", headers=fine)[0] == 404
        assert counted(refused) == before | {"unsupported": 3}


def test_at_the_http_receiver_a_truncated_body(refused: RefusalCounts) -> None:
    with http_listener(refused) as port:
        with connect(port) as slow:
            slow.sendall(head("Content-Type: application/x-protobuf", "Content-Length: 100") + b"x")
            assert rest(slow).startswith(b"HTTP/1.1 408 ")
        assert counted(refused) == {"too_slow": 1}
        with connect(port) as gone:
            gone.sendall(head("Content-Type: application/x-protobuf", "Content-Length: 100") + b"x")
        wait_until("seen", lambda: counted(refused) == {"too_slow": 1, NOT_RECEIVED: 1})


def test_more_concurrent_exports_than_a_receiver_takes(refused: RefusalCounts) -> None:
    gate = Gate()
    with grpc_listener(refused, gate) as (receiver, channel), ThreadPoolExecutor(2) as pool:
        taken = [pool.submit(export, channel) for _ in range(2)]
        wait_until("one in hand, one waiting", lambda: receiver.pending == 2)
        assert export(channel) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert counted(refused) == {"busy": 1}
        gate.go_on.set()
        assert [one.result(WAIT_S) for one in taken] == [grpc.StatusCode.OK] * 2
    gate.go_on.clear()
    with http_listener(refused, gate) as port, ExitStack() as stack:
        threads = [Thread(target=send, args=(port,)) for _ in range(2)]
        for thread in threads:
            thread.start()
            stack.callback(thread.join)
        stack.callback(gate.go_on.set)
        wait_until("turned away", lambda: send_in_time(port) == 429)
    assert counted(refused)["busy"] >= 2


def send_in_time(port: int) -> int | None:
    """Return the answer if it comes at once, None if the export is taken in hand."""
    with closing(connect(port)) as connection:
        connection.settimeout(0.2)
        connection.sendall(head("Content-Type: application/x-protobuf", f"Content-Length: {len(RAW)}") + RAW)
        try:
            return int(connection.recv(100).split()[1])
        except TimeoutError:
            return None


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (JournalError("disk full"), "journal"),
        (InternalError("ours"), "internal"),
        (KeyError("a bug"), "internal"),
        (BusyError("the evaluator is behind"), None),
        (UnavailableError("stopping"), None),
    ],
)
def test_what_the_flow_refuses(
    refused: RefusalCounts, error: Exception, reason: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with grpc_listener(refused, raising(error)) as (_, channel), http_listener(refused, raising(error)) as port:
        assert export(channel) is not grpc.StatusCode.OK
        assert send(port)[0] in (429, 500, 503)
    assert counted(refused) == ({} if reason is None else {reason: 2})


def test_metrics_show_it(tmp_path: Path) -> None:
    """A real collector: refusals of the receivers stand beside those of the flow."""
    with collector(tmp_path) as running, grpc.insecure_channel(running.grpc) as channel:
        assert export(channel, raw=b"\xff") is grpc.StatusCode.INVALID_ARGUMENT
        port = int(running.http.rpartition(":")[2])
        assert send(port, headers={"Content-Type": "text/plain"})[0] == 415
        shown = metrics(int(running.web.rpartition(":")[2]))
        assert shown["malformed"] == shown["unsupported"] == 1
        assert shown["too_large"] == shown[NOT_RECEIVED] == 0
        assert running.stop()[0] == 0


def metrics(port: int) -> dict[str, float]:
    """Return the refused exports of `/metrics` by reason."""
    text = send(port, "GET", "/metrics", None, {})[2].decode()
    name = "otel_llm_collector_refused_exports_total"
    return {
        reason: float(value) for reason, value in re.findall(rf'^{name}{{reason="(\w+)"}} (\S+)', text, re.MULTILINE)
    }


def test_every_reason_begins_at_zero(refused: RefusalCounts) -> None:
    found = {key.removeprefix(SOURCE) for key, number in refused.counts().items() if number == 0}
    assert found == {row.reason for _, row in ANSWERS} - {"unavailable"} | {NOT_RECEIVED, BEHIND}
    assert found & set(FLOW) == {BEHIND}


def test_a_refusal_of_no_row_is_a_bug_of_ours(refused: RefusalCounts) -> None:
    refused.count(RefusalError("x"))
    assert counted(refused) == {"internal": 1}
