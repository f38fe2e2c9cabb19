"""Forwarding against real OTLP servers: what is offered arrives, byte for byte, whatever the backend does meanwhile."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from support.collector.out_receiver import BACKENDS, Backend, Refusal, silent_until
from support.commands import wait_until
from support.otlp import T0_NS, export, segment_span
from support.patience import WAIT_S
from support.ports import free_ports

from otel_llm.collector.export.egress import Forwarder
from otel_llm.collector.export.send_queue import LONGEST_PAUSE_S
from otel_llm.config.otlp_target import Headers, OtlpTarget, Protocol
from otel_llm.export.transport import attempt as attempts

PROTOCOLS: list[Protocol] = ["grpc", "http/protobuf"]
both = pytest.mark.parametrize("protocol", PROTOCOLS)


def raw(number: int, tokens: int = 3) -> bytes:
    """Return an export; its unknown field is what a later version of the protocol might add."""
    return export(segment_span(number, 0, [T0_NS + i for i in range(tokens)])).SerializeToString() + b"\xfa\x3f\x01x"


def seqs(body: bytes) -> list[int]:
    """Return the numbers of the exports in some bytes, as any OTLP server reads them."""
    return [
        attribute.value.int_value
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
        for attribute in span.attributes
        if attribute.key == "otel_llm.segment.seq"
    ]


@contextmanager
def forwarding(protocol: Protocol, port: int, queue_bytes: int = 2**24, **changed: Any) -> Iterator[Forwarder]:
    made = Forwarder(OtlpTarget(endpoint=f"http://127.0.0.1:{port}", protocol=protocol, **changed), queue_bytes)
    made.start()
    try:
        yield made
    finally:
        made.stop(0)


def sent(forwarder: Forwarder, number: int) -> None:
    wait_until(f"{number} are sent", lambda: forwarder.counts()["forward_sent"] == number)


def busy(protocol: Protocol, after_s: int) -> Refusal:
    """Return the answer of a backend that asks to come back later."""
    if protocol == "http/protobuf":
        return Refusal(429, [("Retry-After", str(after_s))])
    status = Status(code=8)
    status.details.add().Pack(RetryInfo(retry_delay=Duration(seconds=after_s)))
    return Refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, [("grpc-status-details-bin", status.SerializeToString())])


def scripted(*answers: Refusal | bytes | None) -> Callable[[bytes], Refusal | bytes | None]:
    left = list(answers)
    return lambda body: left.pop(0) if left else None


@both
@pytest.mark.parametrize("compression", ["gzip", "none"])
def test_what_is_offered_arrives_unchanged_and_in_order(protocol: Protocol, compression: str) -> None:
    backend = Backend()
    with (
        BACKENDS[protocol](backend) as port,
        forwarding(protocol, port, compression=compression, headers=Headers((("Api-Key", "secret"),))) as forwarder,
    ):
        for number in range(200):
            forwarder.offer(raw(number))
        sent(forwarder, 200)
        assert backend.raw() == b"".join(raw(number) for number in range(200))
        assert seqs(backend.raw()) == list(range(200))
        assert backend.attempts < 200  # several in one request
        assert {headers["api-key"] for headers in backend.headers} == {"secret"}
        assert all(headers["user-agent"].startswith("otel-llm-collector/") for headers in backend.headers)
        forwarder.offer(raw(200))
        sent(forwarder, 201)
        assert len(backend.peers) == 1
        assert forwarder.counts() == {
            "forward_queued_bytes": 0,
            "forward_sent": 201,
            "forward_dropped": 0,
            "forward_failed": 0,
            "forward_retries": 0,
            "forward_rejected_spans": 0,
        }


@both
def test_a_backend_that_never_answers_holds_nobody_up(protocol: Protocol) -> None:
    never = threading.Event()
    backend = Backend(answer=silent_until(never))
    with BACKENDS[protocol](backend) as port, forwarding(protocol, port, queue_bytes=5 * 10**5) as forwarder:
        try:
            size = len(raw(10**5))
            for number in range(10_000):
                forwarder.offer(raw(10**5 + number))
            kept = 5 * 10**5 // size
            assert forwarder.counts()["forward_dropped"] == 10_000 - kept
            assert forwarder.counts()["forward_queued_bytes"] == kept * size
        finally:
            never.set()
        sent(forwarder, kept)
        assert seqs(backend.raw()) == [10**5 + number for number in range(kept)]  # the newest were dropped


@both
def test_a_backend_that_says_when_is_believed(protocol: Protocol, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says now; our own patience would be without end."""
    monkeypatch.setattr(attempts, "backoff_s", lambda failures: 1e6)
    backend = Backend(answer=scripted(busy(protocol, 0), busy(protocol, 0)))
    with BACKENDS[protocol](backend) as port, forwarding(protocol, port) as forwarder:
        forwarder.offer(raw(1))
        sent(forwarder, 1)
        assert (backend.attempts, forwarder.counts()["forward_retries"]) == (3, 2)
        assert seqs(backend.raw()) == [1]


@both
def test_a_backend_that_says_much_later_is_left_alone(protocol: Protocol, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own patience would have none; one attempt more is made since the service stops."""
    monkeypatch.setattr(attempts, "backoff_s", lambda failures: 0.0)
    backend = Backend(answer=scripted(*[busy(protocol, 3600)] * 9))
    with BACKENDS[protocol](backend) as port, forwarding(protocol, port) as forwarder:
        forwarder.offer(raw(1))
        wait_until("it was tried", lambda: forwarder.counts()["forward_retries"] == 1)
        assert not forwarder.stop(LONGEST_PAUSE_S), "its next pause would be over too late"
        assert (backend.attempts, forwarder.counts()["forward_dropped"]) == (2, 1)


@both
def test_what_a_backend_says_that_it_rejected_is_counted(protocol: Protocol) -> None:
    partial = ExportTracePartialSuccess(rejected_spans=2, error_message="too old")
    answer = ExportTraceServiceResponse(partial_success=partial).SerializeToString()
    backend = Backend(answer=scripted(answer))
    with BACKENDS[protocol](backend) as port, forwarding(protocol, port) as forwarder:
        forwarder.offer(raw(1))
        sent(forwarder, 1)
        assert forwarder.counts()["forward_rejected_spans"] == 2


def test_an_answer_that_is_none_is_an_answer() -> None:
    backend = Backend(answer=scripted(b"<html>fine</html>" * 10_000))
    with BACKENDS["http/protobuf"](backend) as port, forwarding("http/protobuf", port) as forwarder:
        forwarder.offer(raw(1))
        sent(forwarder, 1)


def test_a_redirect_is_not_followed() -> None:
    elsewhere = Backend()
    with BACKENDS["http/protobuf"](elsewhere) as there:
        backend = Backend(answer=scripted(Refusal(307, [("Location", f"http://127.0.0.1:{there}/v1/traces")])))
        with BACKENDS["http/protobuf"](backend) as port, forwarding("http/protobuf", port) as forwarder:
            forwarder.offer(raw(1))
            wait_until("it is refused", lambda: forwarder.counts()["forward_failed"] == 1)
    assert elsewhere.attempts == 0


@both
def test_a_netrc_changes_no_header(protocol: Protocol, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login somebody password else\n")
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    backend = Backend()
    headers = Headers((("authorization", "Bearer ours"),))
    with BACKENDS[protocol](backend) as port, forwarding(protocol, port, headers=headers) as forwarder:
        forwarder.offer(raw(1))
        sent(forwarder, 1)
    assert backend.headers[0]["authorization"] == "Bearer ours"


@both
def test_a_backend_that_comes_back_gets_the_rest(protocol: Protocol) -> None:
    before, after = Backend(), Backend()
    # A port that no client is given, not even ours while it tries to connect: it is free when the backend comes back.
    [port] = free_ports(1)
    with ExitStack() as running:
        running.enter_context(BACKENDS[protocol](before, port))
        with forwarding(protocol, port) as forwarder:
            for number in range(10):
                forwarder.offer(raw(number))
            sent(forwarder, 10)
            running.close()
            for number in range(10, 20):
                forwarder.offer(raw(number))
            wait_until("it is missed", lambda: forwarder.counts()["forward_retries"] > 0)
            with BACKENDS[protocol](after, port):
                sent(forwarder, 20)
    assert seqs(before.raw()) == list(range(10))
    assert seqs(after.raw()) == list(range(10, 20))


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a key and a self-signed certificate for 127.0.0.1."""
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=backend "
        f"-addext subjectAltName=IP:127.0.0.1 -keyout {key} -out {certificate}"
    )
    subprocess.run(command.split(), check=True, capture_output=True, timeout=WAIT_S)
    return key, certificate


@both
def test_tls_with_a_certificate_that_is_trusted(protocol: Protocol, tls: tuple[Path, Path]) -> None:
    backend = Backend()
    with BACKENDS[protocol](backend, tls=tls) as port:
        forwarder = Forwarder(OtlpTarget(endpoint=f"https://127.0.0.1:{port}", protocol=protocol, ca_file=tls[1]))
        forwarder.start()
        forwarder.offer(raw(1))
        assert forwarder.stop(WAIT_S)
    assert seqs(backend.raw()) == [1]


@both
def test_tls_with_a_certificate_that_is_not_trusted(protocol: Protocol, tls: tuple[Path, Path]) -> None:
    backend = Backend()
    with BACKENDS[protocol](backend, tls=tls) as port:
        forwarder = Forwarder(OtlpTarget(endpoint=f"https://127.0.0.1:{port}", protocol=protocol))
        forwarder.start()
        forwarder.offer(raw(1))
        wait_until("it was tried", lambda: forwarder.counts()["forward_retries"] > 0)
        assert not forwarder.stop(0)
    assert backend.attempts == 0
