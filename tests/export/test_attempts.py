"""What an answer means, and how long to wait: retried only what may pass, no sooner than asked."""

from __future__ import annotations

import math
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import grpc
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st
from support.otlp_receiver import Answer, GrpcReceiver, HttpReceiver
from support.patience import WAIT_S
from support.ports import free_ports

from otel_llm.export.settings import OtlpSettings
from otel_llm.export.transport.attempt import (
    LONGEST_BACKOFF_S,
    Attempt,
    backoff_s,
    rejected_spans,
    retry_after_s,
    retry_wait_s,
)
from otel_llm.export.transport.grpc import GrpcSender
from otel_llm.export.transport.http import HttpSender
from otel_llm.export.transport.whole_exchange import ANSWER_BYTES

Code = grpc.StatusCode


def grpc_sender(receiver: GrpcReceiver, **more: Any) -> GrpcSender:
    return GrpcSender(OtlpSettings("grpc", f"127.0.0.1:{receiver.port}", **more))


def http_sender(receiver: HttpReceiver, **more: Any) -> HttpSender:
    return HttpSender(OtlpSettings("http/protobuf", f"{receiver.endpoint}/v1/traces", **more))


def retry_info(seconds: float) -> bytes:
    info = RetryInfo()
    info.retry_delay.FromNanoseconds(int(seconds * 1e9))
    return bytes(info.SerializeToString())


def status_details(seconds: float) -> bytes:
    detail = AnyMessage()
    info = RetryInfo()
    info.retry_delay.FromNanoseconds(int(seconds * 1e9))
    detail.Pack(info)
    return bytes(Status(code=8, details=[detail]).SerializeToString())


@pytest.mark.parametrize(
    ("code", "metadata", "verdict", "after_s"),
    [
        (Code.UNAVAILABLE, (), "retry", None),
        (Code.DEADLINE_EXCEEDED, (), "retry", None),
        (Code.CANCELLED, (), "retry", None),
        (Code.ABORTED, (), "retry", None),
        (Code.OUT_OF_RANGE, (), "retry", None),
        (Code.DATA_LOSS, (), "retry", None),
        (Code.UNAVAILABLE, (("google.rpc.retryinfo-bin", retry_info(2.5)),), "retry", 2.5),
        (Code.RESOURCE_EXHAUSTED, (("grpc-status-details-bin", status_details(0.25)),), "retry", 0.25),
        (Code.RESOURCE_EXHAUSTED, (), "refused", None),  # a message too large, for one: it stays so
        (Code.RESOURCE_EXHAUSTED, (("grpc-status-details-bin", b"\xff\xff"),), "refused", None),
        (Code.INVALID_ARGUMENT, (), "refused", None),
        (Code.UNAUTHENTICATED, (), "refused", None),
        (Code.UNIMPLEMENTED, (), "refused", None),
        (Code.INTERNAL, (), "refused", None),
    ],
)
def test_grpc_answers(code: Any, metadata: Any, verdict: str, after_s: float | None) -> None:
    with GrpcReceiver() as receiver:
        sender = grpc_sender(receiver)
        receiver.answers.append(Answer(code, metadata))
        attempt = sender.send(b"")
        sender.close()
    assert (attempt.verdict, attempt.after_s) == (verdict, after_s)
    assert code.name in attempt.reason


@pytest.mark.parametrize(
    ("status", "metadata", "verdict", "after_s"),
    [
        (429, (("Retry-After", "7"),), "retry", 7.0),
        (429, (), "retry", None),
        (502, (), "retry", None),
        (503, (("Retry-After", "rubbish"),), "retry", None),
        (504, (), "retry", None),
        (500, (), "refused", None),
        (400, (), "refused", None),
        (404, (), "refused", None),
        (302, (("Location", "http://127.0.0.1:1/"),), "refused", None),
    ],
)
def test_http_answers(status: int, metadata: Any, verdict: str, after_s: float | None) -> None:
    with HttpReceiver() as receiver:
        sender = http_sender(receiver)
        receiver.answers.append(Answer(status, metadata))
        attempt = sender.send(b"")
        sender.close()
    assert (attempt.verdict, attempt.after_s) == (verdict, after_s)
    assert str(status) in attempt.reason


def test_an_endpoint_that_is_not_there_may_come() -> None:
    [port] = free_ports(1)
    http = HttpSender(OtlpSettings("http/protobuf", f"http://127.0.0.1:{port}/v1/traces"))
    over_grpc = GrpcSender(OtlpSettings("grpc", f"127.0.0.1:{port}"))
    assert [sender.send(b"").verdict for sender in (http, over_grpc)] == ["retry", "retry"]
    http.close()
    over_grpc.close()


@pytest.mark.parametrize("compression", ["none", "gzip", "deflate"])
def test_http_sends_what_the_settings_say(compression: Any) -> None:
    with HttpReceiver() as receiver:
        sender = http_sender(receiver, headers=(("x-key", "secret"),), compression=compression)
        assert [sender.send(b"").verdict for _ in range(2)] == ["accepted", "accepted"]
        sender.close()
        sender.close()
    headers = receiver.headers[0]
    assert (headers["x-key"], headers["path"]) == ("secret", "/v1/traces")
    assert headers["Content-Type"] == "application/x-protobuf"
    assert headers["User-Agent"].startswith("otel-llm/")
    assert headers.get("Content-Encoding", "none") == compression


def test_grpc_sends_what_the_settings_say() -> None:
    with GrpcReceiver() as receiver:
        sender = grpc_sender(receiver, headers=(("x-key", "secret"),), compression="gzip")
        assert sender.send(b"").verdict == "accepted"
        sender.close()
        sender.close()
    assert receiver.headers[0]["x-key"] == "secret"
    assert receiver.headers[0]["user-agent"].startswith("otel-llm/")


def test_a_partial_success_counts_what_was_rejected() -> None:
    with GrpcReceiver() as receiver, HttpReceiver() as other:
        receiver.answers.append(Answer(rejected=3))
        other.answers.append(Answer(rejected=4))
        over_grpc, http = grpc_sender(receiver), http_sender(other)
        attempts = [sender.send(b"") for sender in (over_grpc, http)]
        over_grpc.close()
        http.close()
    assert [(attempt.verdict, attempt.rejected, attempt.reason) for attempt in attempts] == [
        ("accepted", 3, "too many"),
        ("accepted", 4, "too many"),
    ]


def test_a_body_that_is_no_response_is_none() -> None:
    assert rejected_spans(b"<html>") == (0, "")


@contextmanager
def answering(answer: Callable[[socket.socket], None]) -> Iterator[HttpSender]:
    """Give a sender to a server that reads one request, and answers it by `answer`."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            made, _ = listener.accept()
            with made, suppress(OSError):
                made.recv(65536)
                answer(made)

        thread = threading.Thread(target=serve)
        thread.start()
        sender = HttpSender(OtlpSettings("http/protobuf", f"http://127.0.0.1:{listener.getsockname()[1]}/v1/traces"))
        yield sender
        thread.join(WAIT_S)
        assert not thread.is_alive()
        sender.close()


def test_no_answer_without_end_is_read() -> None:
    sent = 0

    def answer(made: socket.socket) -> None:
        nonlocal sent
        made.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            made.sendall(b" " * 65536)
            sent += 65536

    with answering(answer) as sender:
        assert sender.send(b"").verdict == "accepted"
    assert ANSWER_BYTES <= sent < 2**26


def test_an_answer_that_breaks_off_is_tried_again() -> None:
    with answering(lambda made: made.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx")) as sender:
        assert sender.send(b"").verdict == "retry"


def test_the_wait_is_what_the_server_asks_for_within_a_bound() -> None:
    asked = Attempt("retry", after_s=400.0)
    assert [retry_wait_s(asked, 0, most) for most in (300.0, math.inf)] == [300.0, 400.0]
    assert retry_wait_s(Attempt("retry", after_s=0.0), 9) == 0.0
    assert 3.2 <= retry_wait_s(Attempt("retry"), 2, 1.0) <= 4.8


@given(attempt=st.integers(0, 10_000))
def test_back_off_doubles_is_capped_and_spread(attempt: int) -> None:
    assert 0.8 * min(2.0 ** min(attempt, 16), LONGEST_BACKOFF_S) <= backoff_s(attempt) <= 1.2 * LONGEST_BACKOFF_S
    assert len({backoff_s(3) for _ in range(5)}) > 1


def test_retry_after() -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)
    past = format_datetime(datetime.now(UTC) - timedelta(seconds=90), usegmt=True)
    assert 60 < (retry_after_s(soon) or 0) <= 90
    assert [retry_after_s(value) for value in (past, "-3", "0", "2.5")] == [0, 0, 0, 2.5]
    assert [retry_after_s(value) for value in (None, "", "inf", "nan", "later")] == [None] * 5


@pytest.mark.parametrize("value", ["Bearer SECRET\n123", "Bearer SECRET\u20ac"])
def test_a_header_that_cannot_be_sent_is_not_quoted(value: str) -> None:
    sender = HttpSender(
        OtlpSettings("http/protobuf", "http://127.0.0.1:9/v1/traces", headers=(("authorization", value),))
    )
    attempt = sender.send(b"")
    sender.close()
    assert (attempt.verdict, attempt.reason) == (
        "refused",
        "UnicodeEncodeError" if "\u20ac" in value else "InvalidHeader",
    )


@pytest.mark.parametrize(
    "sender",
    [
        GrpcSender(OtlpSettings("grpc", "user:SECRET@127.0.0.1:9")),
        HttpSender(OtlpSettings("http/protobuf", "http://user:SECRET@/v1/traces")),  # requests refuses it: no host
    ],
    ids=["grpc", "http/protobuf"],
)
def test_an_endpoint_with_credentials_is_not_quoted(sender: GrpcSender | HttpSender) -> None:
    attempt = sender.send(b"")
    sender.close()
    assert attempt.verdict != "accepted"
    assert "SECRET" not in attempt.reason
