"""The errors of the service, and the answer to each.

    CollectorError
    |- StartError                    the operator's: nothing is started, exit 2
    |  |- TlsFileError               a certificate or key cannot be used
    |  |- AddressError               a listener's address is in use, not this machine's, or no address
    |  `- JournalInUseError          another process writes this journal
    `- RefusalError                  the answer to one export
       |- UnauthenticatedError       theirs, permanent: no token, or an unknown one
       |- ForbiddenError             theirs, permanent: an origin or a host name that is not listed
       |- TooLargeError              theirs, permanent: over a size limit, before or after decompression
       |- UnavailableError           ours, retryable: nothing can be accepted now
       |  `- JournalError            ours, retryable: the journal cannot be written (disk full ...)
       |- BadRequestError            theirs, permanent: the bytes are no export request
       |- UnsupportedContentError    theirs, permanent: an unsupported content type or encoding
       |- TooSlowError               theirs, permanent: the body did not arrive in time
       |- BusyError                  ours, retryable: over a temporary limit
       `- InternalError              ours, permanent: a bug; a retry would not help

The errors of a start stand in `otel_llm.config.errors`, those of every port in `otel_llm.shared.errors`, the journal's
in `otel_llm.journal.journal_errors`.

`ANSWERS` is the one table from these to gRPC and HTTP. By the OTLP specification an exporter may retry after
UNAVAILABLE, and after RESOURCE_EXHAUSTED with RetryInfo: both say when. It may retry after CANCELLED and
DEADLINE_EXCEEDED, which do not say when; over HTTP, after 429 and 503, which may say when (Retry-After). Two codes of
gRPC are only in the bodies of HTTP answers: PERMISSION_DENIED, as no browser's page speaks gRPC, and DEADLINE_EXCEEDED,
as an RPC whose message is late is cancelled instead.
`docs/collector-failures.md` has the table for people.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from otel_llm.formats.records import DecodeError
from otel_llm.journal.journal_errors import JournalError
from otel_llm.shared.errors import (
    ForbiddenError,
    RefusalError,
    TooLargeError,
    UnauthenticatedError,
    UnavailableError,
)

if TYPE_CHECKING:
    from collections import Counter


class BadRequestError(RefusalError):
    """The bytes are no export request."""


class UnsupportedContentError(RefusalError):
    """The content type or encoding is not supported."""


class TooSlowError(RefusalError):
    """The body did not arrive in time."""


class BusyError(RefusalError):
    """A temporary limit is exceeded."""

    retry_after_s = 1


class InternalError(RefusalError):
    """The service has a bug."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The form of a refusal in each protocol, and in the collector's counts."""

    grpc: str
    """The name of the `grpc.StatusCode`."""
    code: int
    """The same as `google.rpc.Code`."""
    http: int
    reason: str
    """The label of `refused_exports`."""


ANSWERS: Final[tuple[tuple[type[RefusalError], Answer], ...]] = (
    (UnauthenticatedError, Answer("UNAUTHENTICATED", 16, 401, "unauthenticated")),
    (ForbiddenError, Answer("PERMISSION_DENIED", 7, 403, "forbidden")),
    (BadRequestError, Answer("INVALID_ARGUMENT", 3, 400, "malformed")),
    (UnsupportedContentError, Answer("UNIMPLEMENTED", 12, 415, "unsupported")),
    (TooLargeError, Answer("RESOURCE_EXHAUSTED", 8, 413, "too_large")),
    (TooSlowError, Answer("DEADLINE_EXCEEDED", 4, 408, "too_slow")),
    (BusyError, Answer("RESOURCE_EXHAUSTED", 8, 429, "busy")),
    (JournalError, Answer("UNAVAILABLE", 14, 503, "journal")),
    (UnavailableError, Answer("UNAVAILABLE", 14, 503, "unavailable")),
    (InternalError, Answer("INTERNAL", 13, 500, "internal")),
)


def answer(refusal: RefusalError) -> Answer:
    """Return the row of `ANSWERS` for a refusal; one without a row is an internal error."""
    for kind, row in ANSWERS:
        if isinstance(refusal, kind):
            return row
    return Answer("INTERNAL", 13, 500, "internal")


def challenge(refusal: RefusalError) -> dict[str, str]:
    """Return the header of a 401 (RFC 9110, section 15.5.2); none for another answer."""
    return {"WWW-Authenticate": "Bearer"} if isinstance(refusal, UnauthenticatedError) else {}


def as_refusal(error: Exception) -> RefusalError:
    """Return the refusal for an error of `accept`; an unexpected one is an internal error."""
    if isinstance(error, RefusalError):
        return error
    if isinstance(error, DecodeError):
        return BadRequestError(str(error))
    return InternalError("internal error")


def status(refusal: RefusalError) -> Status:
    """Return the `google.rpc.Status` of a refusal, with a RetryInfo if the client may retry."""
    made = Status(code=answer(refusal).code, message=str(refusal))
    if refusal.retry_after_s:
        made.details.add().Pack(RetryInfo(retry_delay=Duration(seconds=refusal.retry_after_s)))
    return made


def acknowledgement(refused: Counter[str]) -> bytes:
    """Return the OTLP answer to an export in the journal; `refused`: its refused spans, by reason."""
    if not refused.total():
        return b""
    response = ExportTraceServiceResponse()
    response.partial_success.rejected_spans = refused.total()
    reasons = ", ".join(f"{number} {reason}" for reason, number in sorted(refused.items()))
    response.partial_success.error_message = f"spans refused: {reasons}"
    return response.SerializeToString()
