"""The error that an event of a reply states: whose fault it is, and the backend's own words for it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_llm.instrumentation.segments.stated_errors import error_of, kind_of
from otel_llm.instrumentation.segments.statements import member

if TYPE_CHECKING:
    from collections.abc import Iterator

_STATUS_NAMES: Final = ("code", "status", "status_code", "http_status", "type")
_WORD_NAMES: Final = ("type", "code", "status", "error_type", "err_type")
_FIRST_STATUS, _FIRST_SERVERS, _LAST_STATUS = 400, 500, 599
_PASSING: Final = frozenset({408, 429})
"""Statuses below 500 that another backend may not have: a time-out, and too many requests."""
_CLIENTS: Final = frozenset(
    {
        "authentication",
        "badrequest",
        "contentfilter",
        "contentpolicyviolation",
        "contextlength",
        "contextlengthexceeded",
        "contextwindowexceeded",
        "exceedcontextsize",
        "failedprecondition",
        "forbidden",
        "invalidapikey",
        "invalidargument",
        "invalidmodel",
        "invalidprompt",
        "invalidrequest",
        "invalidvalue",
        "modelnotfound",
        "notfound",
        "permission",
        "permissiondenied",
        "payloadtoolarge",
        "requestentitytoolarge",
        "requesttoolarge",
        "stringabovemaxlength",
        "unauthenticated",
        "unauthorized",
        "unprocessableentity",
        "unsupportedmodel",
        "unsupportedparameter",
        "unsupportedvalue",
        "validation",
    }
)
"""Words for errors of the client, in lower case, without separators and "error" at their end."""
_SEPARATORS: Final = re.compile(r"[^a-z0-9]")


class StatedError(NamedTuple):
    """An error of a reply. `kind`: its `error.type`; `clients`: the request is wrong, so every backend refuses it."""

    kind: str
    clients: bool
    message: str | None


def stated_error(value: dict[str, Any]) -> StatedError | None:
    """Return the error that an event states; None for any other event."""
    kind = error_of(value)
    return None if kind is None else _error(kind, member(value, "error") or value, value)


def choice_error(choice: dict[str, Any]) -> StatedError | None:
    """Return the error that a choice states, None for a choice without one."""
    error = choice.get("error")
    return _error(kind_of(error), error, error) if error else None


def _error(kind: str, error: Any, around: Any) -> StatedError:
    message = error if isinstance(error, str) else member(error, "message") or member(around, "message")
    return StatedError(kind, _is_clients(error, around), message if isinstance(message, str) and message else None)


def _is_clients(error: Any, around: Any) -> bool:
    """Return whether a request failed by its own fault: by the first status that is stated, or else by a word."""
    for stated in _stated(_STATUS_NAMES, error, around):
        number = int(stated) if isinstance(stated, str) and stated.isdecimal() and len(stated) == 3 else stated
        if type(number) is int and _FIRST_STATUS <= number <= _LAST_STATUS:
            return number < _FIRST_SERVERS and number not in _PASSING
    words = [stated for stated in _stated(_WORD_NAMES, error, around) if isinstance(stated, str)]
    return any(_plain(word.rpartition(".")[2]).removesuffix("error") in _CLIENTS for word in words)


def _plain(word: str) -> str:
    return _SEPARATORS.sub("", word[:64].lower())


def _stated(names: tuple[str, ...], *holders: Any) -> Iterator[Any]:
    return (member(holder, name) for holder in holders for name in names)
