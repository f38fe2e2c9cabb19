from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]

from otel_llm.export.attempt import JITTER, LONGEST_BACKOFF_S, backoff_s
from otel_llm.shared.attempt import of_grpc_error, of_http_status

INFO = RetryInfo(retry_delay=Duration(seconds=3, nanos=500_000_000))


class Failed(grpc.RpcError):  # type: ignore[misc]
    def __init__(self, code: grpc.StatusCode, trailers: tuple[tuple[str, bytes], ...] = ()) -> None:
        self._code, self._trailers = code, trailers

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return "why"

    def trailing_metadata(self) -> tuple[tuple[str, bytes], ...]:
        return self._trailers


def in_status() -> bytes:
    status = Status(code=8)
    status.details.add().Pack(Duration(seconds=9))
    status.details.add().Pack(INFO)
    return bytes(status.SerializeToString())


# The table of the OTLP specification, "Failures" of OTLP/gRPC.
RETRYABLE = {"CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS"}


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_grpc_codes_are_taken_as_the_specification_says(code: grpc.StatusCode) -> None:
    plain = of_grpc_error(Failed(code))
    assert plain.verdict == ("retry" if code.name in RETRYABLE else "refused")
    assert plain.reason == f"{code.name}: why"
    assert plain.divisible == (code.name in ("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"))
    told = of_grpc_error(Failed(code, (("grpc-status-details-bin", in_status()),)))
    assert told.verdict == ("retry" if code.name in RETRYABLE | {"RESOURCE_EXHAUSTED"} else "refused")
    if told.verdict == "retry":
        assert told.after_s == 3.5


@pytest.mark.parametrize(
    ("trailers", "after_s"),
    [
        ((("google.rpc.retryinfo-bin", INFO.SerializeToString()),), 3.5),
        ((("x", b"y"), ("grpc-status-details-bin", b"\xff\xff")), None),
        ((("grpc-status-details-bin", b""),), None),
        ((("google.rpc.retryinfo-bin", RetryInfo(retry_delay=Duration(seconds=-4)).SerializeToString()),), 0.0),
    ],
)
def test_when_to_come_back_is_read_where_servers_write_it(
    trailers: tuple[tuple[str, bytes], ...], after_s: float | None
) -> None:
    assert of_grpc_error(Failed(grpc.StatusCode.UNAVAILABLE, trailers)).after_s == after_s


@pytest.mark.parametrize("status", range(300, 600))
def test_http_statuses_are_taken_as_the_specification_says(status: int) -> None:
    attempt = of_http_status(status, "7")
    assert attempt.verdict == ("retry" if status in (429, 502, 503, 504) else "refused")
    assert attempt.after_s == (7.0 if attempt.verdict == "retry" else None)
    assert attempt.divisible == (status in (400, 413))


@pytest.mark.parametrize(
    ("header", "after_s"),
    [(None, None), ("0", 0.0), ("1.5", 1.5), ("-3", 0.0), ("nan", None), ("inf", None), ("soon", None), ("", None)],
)
def test_retry_after_in_seconds(header: str | None, after_s: float | None) -> None:
    assert of_http_status(503, header).after_s == after_s


def test_retry_after_as_a_date() -> None:
    now = datetime.now(UTC)
    assert of_http_status(503, format_datetime(now - timedelta(hours=1), usegmt=True)).after_s == 0.0
    later = of_http_status(503, format_datetime(now + timedelta(hours=1), usegmt=True)).after_s
    assert later is not None
    assert 0 < later <= 3600


def test_waits_double_up_to_a_limit_and_are_not_all_the_same() -> None:
    for failures, nominal in ((0, 1.0), (1, 2.0), (3, 8.0), (4, LONGEST_BACKOFF_S), (10**9, LONGEST_BACKOFF_S)):
        waits = {backoff_s(failures) for _ in range(50)}
        assert len(waits) > 1
        assert all(nominal * (1 - JITTER) <= wait <= nominal * (1 + JITTER) for wait in waits)
