"""The result of one attempt of the service to send, by the OTLP specification."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from otel_llm.export.attempt import retry_after_s
from otel_llm.export.grpc import RETRYABLE_CODES, retry_info_s
from otel_llm.export.http import RETRYABLE_STATUS

_ABOUT_CONTENT: Final = frozenset({"INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "HTTP 400", "HTTP 413"})


@dataclass(frozen=True, slots=True)
class Attempt:
    """The answer to one request.

    `accepted`: except `rejected` items (OTLP's partial success). `retry`: after `after_s`, if the endpoint has named a
    time. `refused`: a retry would not help. `divisible`: the refusal is about the contents, so parts may be accepted.
    """

    verdict: Literal["accepted", "retry", "refused"]
    reason: str = ""
    after_s: float | None = None
    rejected: int = 0
    divisible: bool = False


def of_grpc_error(error: Any) -> Attempt:
    """Return the attempt of a `grpc.RpcError`."""
    code: str = error.code().name
    reason = f"{code}: {error.details() or ''}"[:300]
    after_s = retry_info_s(error.trailing_metadata() or ())
    if code in RETRYABLE_CODES or (code == "RESOURCE_EXHAUSTED" and after_s is not None):
        return Attempt("retry", reason, after_s=after_s)
    return Attempt("refused", reason, divisible=code in _ABOUT_CONTENT)


def of_http_status(status: int, retry_after: str | None) -> Attempt:
    """Return the attempt of an HTTP error status; `retry_after`: the header, None where it is missing."""
    reason = f"HTTP {status}"
    if status in RETRYABLE_STATUS:
        return Attempt("retry", reason, after_s=retry_after_s(retry_after))
    return Attempt("refused", reason, divisible=reason in _ABOUT_CONTENT)
