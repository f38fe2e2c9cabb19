"""OTLP over gRPC: one unary call of bytes that are already protobuf."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from otel_llm.export.records import version
from otel_llm.export.transport.attempt import LONGEST_BACKOFF_S, Attempt, rejected_spans

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_llm.export.settings import OtlpSettings

EXPORT_METHOD: Final = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
RETRYABLE_CODES: Final = frozenset(
    {"CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS"}
)
"""Source: OTLP specification, "Failures"; RESOURCE_EXHAUSTED joins them if the server sends a RetryInfo."""
_ABOUT_CONTENT: Final = frozenset({"INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"})


class GrpcSender:
    """A sender over one channel; nothing is opened or imported before the first payload."""

    def __init__(self, settings: OtlpSettings) -> None:
        self._settings = settings
        self._channel: Any = None
        self._call: Any = None
        self._inherited: list[Any] = []

    def send(self, payload: bytes, timeout_s: float | None = None) -> Attempt:
        """Make one attempt within `timeout_s`, else the settings' time; no failure of network or server is raised."""
        import grpc

        settings = self._settings
        try:
            call = self._call or self._open()
        except OSError as error:  # a certificate file that is not there
            return Attempt("refused", f"{type(error).__name__}: {error}")
        try:
            response = call(payload, timeout=timeout_s or settings.timeout_s, metadata=settings.headers)
        except grpc.RpcError as error:
            return attempt_of_error(error, detailed=settings.shown == settings.endpoint)
        rejected, reason = rejected_spans(response)
        return Attempt("accepted", reason, rejected=rejected)

    def close(self) -> None:
        """Close the channel; an attempt in progress ends."""
        if self._channel is not None:
            self._channel.close()
            self._channel = self._call = None

    def forget(self) -> None:
        """Release a channel of the parent process.

        It is kept, untouched: closing it here would wait for threads that exist in the parent only.
        """
        if self._channel is not None:
            self._inherited.append((self._channel, self._call))
            self._channel = self._call = None

    def _open(self) -> Any:
        import grpc

        settings = self._settings
        compression = grpc.Compression.Gzip if settings.compression == "gzip" else grpc.Compression.NoCompression
        options = (
            ("grpc.primary_user_agent", f"{settings.agent}/{version()}"),
            # By default a channel looks only every other minute for an endpoint that was away for long.
            ("grpc.max_reconnect_backoff_ms", round(LONGEST_BACKOFF_S * 1000)),
        )
        if settings.insecure:
            self._channel = grpc.insecure_channel(settings.endpoint, options=options, compression=compression)
        else:
            credentials = grpc.ssl_channel_credentials(
                _read(settings.certificate), _read(settings.client_key), _read(settings.client_certificate)
            )
            self._channel = grpc.secure_channel(
                settings.endpoint, credentials, options=options, compression=compression
            )
        self._call = self._channel.unary_unary(EXPORT_METHOD)
        return self._call


def _read(path: str | None) -> bytes | None:
    return None if path is None else Path(path).read_bytes()


def attempt_of_error(error: Any, *, detailed: bool = True) -> Attempt:
    """Return the outcome that a `grpc.RpcError` stands for; `detailed`: its details may be shown.

    They quote the endpoint: not where it holds credentials.
    """
    code: str = error.code().name
    details = error.details() if detailed else None
    reason = f"{code}: {details or ''}".strip().rstrip(":")[:300]
    after_s = retry_info_s(error.trailing_metadata() or ())
    if code in RETRYABLE_CODES or (code == "RESOURCE_EXHAUSTED" and after_s is not None):
        return Attempt("retry", reason, after_s=after_s)
    return Attempt("refused", reason, divisible=code in _ABOUT_CONTENT)


def retry_info_s(trailers: Iterable[tuple[str, Any]]) -> float | None:
    """Return the delay that a call's trailing metadata asks for, in seconds; None if there is none.

    The standard place is a google.rpc.Status in grpc-status-details-bin; some servers send the RetryInfo bare.
    """
    from google.protobuf.message import DecodeError
    from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
    from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]

    info = RetryInfo()
    for key, value in trailers:
        try:
            if key == "google.rpc.retryinfo-bin":
                info.ParseFromString(value)
                return _seconds(info)
            if key == "grpc-status-details-bin":
                for detail in Status.FromString(value).details:
                    if detail.Unpack(info):
                        return _seconds(info)
        except DecodeError:
            continue
    return None


def _seconds(info: Any) -> float:
    seconds: float = info.retry_delay.seconds + info.retry_delay.nanos / 1e9
    return max(seconds, 0.0)
