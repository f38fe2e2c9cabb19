"""What became of one attempt to send, and how long to wait before the next, by the OTLP specification."""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Final, Literal

from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]

FIRST_BACKOFF_S: Final = 1.0
LONGEST_BACKOFF_S: Final = 15.0
JITTER: Final = 0.2
"""A wait is multiplied by a random number within this of 1, so that many collectors do not come back at one instant."""

RETRYABLE_CODES: Final = frozenset(
    {"CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS"}
)
"""Source: OTLP specification, "Failures" of OTLP/gRPC; RESOURCE_EXHAUSTED joins them where it comes with RetryInfo."""
RETRYABLE_STATUS: Final = frozenset({429, 502, 503, 504})
"""Source: OTLP specification, "Retryable Response Codes" of OTLP/HTTP."""
_ABOUT_CONTENT: Final = frozenset({"INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "HTTP 400", "HTTP 413"})


@dataclass(frozen=True, slots=True)
class Attempt:
    """The answer to one request.

    `accepted`, perhaps but for `rejected` items (OTLP's partial success); `retry`: not now, but `after_s` (the other
    side's word, None where it gave none); `refused`: never, as it is. `divisible`: the refusal is about what was sent,
    so parts of it may be taken.
    """

    verdict: Literal["accepted", "retry", "refused"]
    reason: str = ""
    after_s: float | None = None
    rejected: int = 0
    divisible: bool = False


def of_grpc_error(error: Any) -> Attempt:
    """Return what a `grpc.RpcError` of a call stands for."""
    code: str = error.code().name
    reason = f"{code}: {error.details() or ''}"[:300]
    after_s = _retry_info_s(error.trailing_metadata() or ())
    if code in RETRYABLE_CODES or (code == "RESOURCE_EXHAUSTED" and after_s is not None):
        return Attempt("retry", reason, after_s=after_s)
    return Attempt("refused", reason, divisible=code in _ABOUT_CONTENT)


def of_http_status(status: int, retry_after: str | None) -> Attempt:
    """Return what an HTTP status that is no success stands for; `retry_after`: the header, if there was one."""
    reason = f"HTTP {status}"
    if status in RETRYABLE_STATUS:
        return Attempt("retry", reason, after_s=_retry_after_s(retry_after))
    return Attempt("refused", reason, divisible=reason in _ABOUT_CONTENT)


def backoff_s(failures: int, longest_s: float = LONGEST_BACKOFF_S) -> float:
    """Return the seconds to wait after failure 0, 1, 2 ... in a row: doubling, capped, with jitter."""
    wait_s = min(FIRST_BACKOFF_S * 2.0 ** min(failures, 16), longest_s)
    return wait_s * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311


def _retry_after_s(header: str | None) -> float | None:
    # RFC 9110, 10.2.3: seconds or an HTTP date.
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(header).timestamp() - time.time()
        except (TypeError, ValueError, OverflowError):
            return None
    return max(seconds, 0.0) if math.isfinite(seconds) else None


def _retry_info_s(trailers: Any) -> float | None:
    # The standard place is a google.rpc.Status in grpc-status-details-bin; some servers send the RetryInfo bare.
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
