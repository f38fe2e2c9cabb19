"""The transports of serialized OTLP, over gRPC and HTTP: one attempt at a time, from one thread."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, Any, Final, Literal

import grpc
import requests
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from otel_llm.export.attempt import LONGEST_BACKOFF_S
from otel_llm.shared.attempt import Attempt, of_grpc_error, of_http_status
from otel_llm.shared.otlp_target import user_agent

if TYPE_CHECKING:
    from otel_llm.shared.otlp_target import OtlpTarget

EXPORT_METHOD: Final = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
GZIP_LEVEL: Final = 1
"""Token events shrink to 29 %; level 6 takes more than twice the time for 28 %."""
ANSWER_BYTES: Final = 64 * 1024
"""The most that is read of an answer over HTTP."""
_PASSING: Final = (
    requests.exceptions.ConnectionError,
    requests.exceptions.Timeout,
    requests.exceptions.ChunkedEncodingError,
)


class GrpcTransport:
    """One channel, opened with the first request."""

    def __init__(self, target: OtlpTarget) -> None:
        self._metadata = target.metadata()
        self._compression = grpc.Compression.Gzip if target.compression == "gzip" else grpc.Compression.NoCompression
        options = (
            ("grpc.primary_user_agent", user_agent()),
            # The default would try to reach an absent backend only every two minutes.
            ("grpc.max_reconnect_backoff_ms", round(LONGEST_BACKOFF_S * 1000)),
        )
        if target.tls:
            credentials = grpc.ssl_channel_credentials(root_certificates=target.certificates())
            self._channel = grpc.secure_channel(target.authority, credentials, options=options)
        else:
            self._channel = grpc.insecure_channel(target.authority, options=options)
        self._call = self._channel.unary_unary(EXPORT_METHOD)

    def send(self, payload: bytes, timeout_s: float) -> Attempt:
        """Make one attempt."""
        try:
            answer = self._call(payload, timeout=timeout_s, metadata=self._metadata, compression=self._compression)
        except grpc.RpcError as error:
            return of_grpc_error(error)
        return _accepted(answer)

    def close(self) -> None:
        """Close the channel; an attempt in progress ends."""
        self._channel.close()


class HttpTransport:
    """One persistent connection."""

    def __init__(self, target: OtlpTarget) -> None:
        self._url = target.url("traces")
        self._gzip = target.compression == "gzip"
        self._session = target.session()
        self._session.headers.update(target.headers)
        self._session.headers.update({"Content-Type": "application/x-protobuf", "User-Agent": user_agent()})
        if self._gzip:
            self._session.headers["Content-Encoding"] = "gzip"

    def send(self, payload: bytes, timeout_s: float) -> Attempt:
        """Make one attempt."""
        body = gzip.compress(payload, GZIP_LEVEL) if self._gzip else payload
        try:
            with self._session.post(self._url, data=body, timeout=timeout_s, stream=True) as response:
                answer = next(response.iter_content(ANSWER_BYTES), b"")
        except requests.exceptions.RequestException as error:
            verdict: Literal["retry", "refused"] = "retry" if isinstance(error, _PASSING) else "refused"
            return Attempt(verdict, f"{type(error).__name__}: {error}"[:300])
        if 200 <= response.status_code < 300:
            return _accepted(answer)
        return of_http_status(response.status_code, response.headers.get("Retry-After"))

    def close(self) -> None:
        """Close the connection; an attempt in progress runs until its timeout."""
        self._session.close()


def _accepted(answer: Any) -> Attempt:
    message = ExportTraceServiceResponse()
    try:
        message.ParseFromString(answer)
    except DecodeError:  # a proxy's answer: the export was accepted
        return Attempt("accepted")
    partial = message.partial_success
    return Attempt("accepted", partial.error_message, rejected=max(partial.rejected_spans, 0))
