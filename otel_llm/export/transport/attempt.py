"""The outcome of one attempt to send, and the wait before the next: the retry policy of applications and the service.

Each sender states its own bounds: how long it tries, and the longest wait that the other side may ask for.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Final, Literal

from otel_llm.export.clock import wall_s

FIRST_BACKOFF_S: Final = 1.0
LONGEST_BACKOFF_S: Final = 15.0
JITTER: Final = 0.2
"""The wait is multiplied by a random number within this of 1, so that a fleet does not retry at one instant."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """The answer to one request.

    `accepted`, perhaps but for `rejected` spans (OTLP's partial success); `retry`: not now, but `after_s` (the server's
    word, None if it gave none); `refused`: never. `divisible`: the refusal is about the content, so that parts of it
    may be accepted.
    """

    verdict: Literal["accepted", "retry", "refused"]
    reason: str = ""
    after_s: float | None = None
    rejected: int = 0
    divisible: bool = False


def backoff_s(failures: int, longest_s: float = LONGEST_BACKOFF_S) -> float:
    """Return the seconds to wait after failure 0, 1, 2 ... in a row: doubling, capped, with jitter."""
    wait_s = min(FIRST_BACKOFF_S * 2.0 ** min(failures, 16), longest_s)
    return wait_s * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311


def retry_wait_s(attempt: Attempt, failures: int, longest_after_s: float = math.inf) -> float:
    """Return the seconds to wait after failure 0, 1, 2 ... in a row: what the server asks for, else the backoff."""
    return backoff_s(failures) if attempt.after_s is None else min(attempt.after_s, longest_after_s)


def retry_after_s(header: str | None) -> float | None:
    """Return the seconds of a `Retry-After` header (RFC 9110, 10.2.3: seconds or an HTTP date); None if unusable."""
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(header).timestamp() - wall_s()
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
