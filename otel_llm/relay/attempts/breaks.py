"""What shows that a backend serves a reply no further, and whether that says something about the backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_llm.relay.backends.upstream import TRY_ELSEWHERE
from otel_llm.relay.splice.resume import UNFINISHED
from otel_llm.relay.splice.upstream_response import DIFFERS, IGNORED

if TYPE_CHECKING:
    from otel_llm.relay.splice.line import Line

NOTHING_LEFT: Final = "nothing is left to generate"
REQUEST_ERROR: Final = "request_error"
OF_THE_STREAM: Final = frozenset({NOTHING_LEFT, UNFINISHED, DIFFERS, IGNORED, REQUEST_ERROR})
"""Reasons for not continuing elsewhere that are no fault of the backend."""


def is_of_stream(reason: str) -> bool:
    """Tell whether a stream did not go on for a reason that is no fault of the backend, such as an answer 400."""
    return reason in OF_THE_STREAM or (reason.isdecimal() and int(reason) not in TRY_ELSEWHERE)


def is_break(line: Line) -> bool:
    """Tell whether a line shows that its backend serves the reply no further."""
    return line.error is not None or line.aborted is not None or line.done_without_finish


def break_of(line: Line) -> str:
    """Return the reason of the break that a line is."""
    if line.error is not None:
        return REQUEST_ERROR if line.error.clients else "error_event"
    return line.aborted or "unfinished"
