"""Map an exception to the stream's outcome on the wire."""

from __future__ import annotations

from typing import Final

COMPLETED: Final = "completed"
CANCELLED: Final = "cancelled"
ABANDONED: Final = "abandoned"
DISCONNECTED: Final = "disconnected"
ERROR: Final = "error"

FAILURES: Final = frozenset({DISCONNECTED, ERROR})
"""Outcomes caused by the server's side or the network: the request span's status is ERROR."""

_TIMEOUTS: Final = frozenset(
    {
        "TimeoutError",
        "TimeoutException",
        "APITimeoutError",
        "Timeout",
        "ServerTimeoutError",
        "ConnectTimeout",  # lm15
        "ReadTimeout",
        "WriteTimeout",
    }
)
_BROKEN: Final = frozenset(
    {
        "ConnectionError",  # the builtin and that of requests
        "APIConnectionError",  # openai, anthropic
        "TransportError",  # httpx, httpx2
        "ClientConnectionError",  # aiohttp
        "ClientPayloadError",
        "ChunkedEncodingError",  # requests
        "IncompleteRead",  # http.client
        "IncompleteReadError",  # asyncio
        "ProtocolError",  # urllib3
        "ConnectionClosedError",  # botocore
        "EOFError",
        "EndOfStream",  # anyio
        "BrokenResourceError",
        "SSLError",
    }
)
_UNREACHED: Final = "NewConnectionError"
"""urllib3's error of a failed connection; by its base alone it is a time-out as well."""


def outcome_of(error: BaseException) -> str:
    """Return the outcome of a stream that raised `error` to its reader.

    An error that is no `Exception` (task cancellation, keyboard interrupt, a closing generator) is the reader's own.
    Classes are known by name, their bases included, so that no client library need be imported; a time-out is checked
    first, since clients derive it from their connection error.
    """
    if not isinstance(error, Exception):
        return CANCELLED
    names = {base.__name__ for base in type(error).__mro__}
    if _UNREACHED in names:
        return DISCONNECTED
    if names & _TIMEOUTS:
        return ERROR
    if "CancelledError" in names:  # concurrent.futures
        return CANCELLED
    return DISCONNECTED if names & _BROKEN else ERROR


def error_type(error: BaseException) -> str:
    """Return the `error.type` of the semantic conventions: the exception's class, qualified unless it is a builtin."""
    cls = type(error)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
