"""What each status of gRPC and HTTP means for a sender: the tables of the OTLP specification."""

from __future__ import annotations

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]

from otel_llm.export.transport.grpc import attempt_of_error
from otel_llm.export.transport.http import attempt_of_status

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
    plain = attempt_of_error(Failed(code))
    assert plain.verdict == ("retry" if code.name in RETRYABLE else "refused")
    assert plain.reason == f"{code.name}: why"
    assert plain.divisible == (code.name in ("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"))
    reported = attempt_of_error(Failed(code, (("grpc-status-details-bin", in_status()),)))
    assert reported.verdict == ("retry" if code.name in RETRYABLE | {"RESOURCE_EXHAUSTED"} else "refused")
    if reported.verdict == "retry":
        assert reported.after_s == 3.5


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
    assert attempt_of_error(Failed(grpc.StatusCode.UNAVAILABLE, trailers)).after_s == after_s


@pytest.mark.parametrize("status", range(300, 600))
def test_http_statuses_are_taken_as_the_specification_says(status: int) -> None:
    attempt = attempt_of_status(status, "7")
    assert attempt.verdict == ("retry" if status in (429, 502, 503, 504) else "refused")
    assert attempt.after_s == (7.0 if attempt.verdict == "retry" else None)
    assert attempt.divisible == (status in (400, 413))
