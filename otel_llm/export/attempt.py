"""The result of one attempt to deliver a batch, and the wait before the next."""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Final, Literal

FIRST_BACKOFF_S: Final = 1.0
LONGEST_BACKOFF_S: Final = 15.0
JITTER: Final = 0.2
"""The wait is multiplied by a random number within this of 1, so that a fleet does not retry at one instant."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """The answer to one export request.

    `accepted`, perhaps except for `rejected` spans (OTLP's partial success); `retry`: not now, but `after_s` (the
    server's delay, None where it gave none); `refused`: never.
    """

    verdict: Literal["accepted", "retry", "refused"]
    reason: str = ""
    after_s: float | None = None
    rejected: int = 0


def backoff_s(failures: int, longest_s: float = LONGEST_BACKOFF_S) -> float:
    """Return the seconds to wait after failure 0, 1, 2 ... in a row: doubling, capped, with jitter."""
    wait_s = min(FIRST_BACKOFF_S * 2.0 ** min(failures, 16), longest_s)
    return wait_s * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311


def retry_after_s(header: str | None) -> float | None:
    """Return the seconds of a `Retry-After` header (RFC 9110, 10.2.3: seconds or an HTTP date); None if unusable."""
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


def rejected_spans(response: bytes) -> tuple[int, str]:
    """Return the number of rejected spans in an `ExportTraceServiceResponse`, and the reason."""
    if not response:
        return 0, ""
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

    message = ExportTraceServiceResponse()
    try:
        message.ParseFromString(response)
    except DecodeError:  # written by a proxy: the status was 200
        return 0, ""
    return max(message.partial_success.rejected_spans, 0), message.partial_success.error_message
