"""Read the errors that a reply states: the kind alone, never the server's message."""

from __future__ import annotations

import re
from typing import Any, Final

from otel_llm.instrumentation.segments.statements import member

ERROR: Final = "error"
"""The type of an event, and the object of a body, that is an error."""
FAILED: Final = "response.failed"
"""The event of OpenAI's responses API that has its error within."""
OTHER: Final = "_OTHER"
"""The kind of an error without one, as the semantic conventions have it."""

_NAMES: Final = ("type", "code", "error_type")
"""The members with the kind of an error."""
_KIND: Final = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


def error_of(chunk: object) -> str | None:
    """Return the kind of the error that a chunk, an event or a whole body is; None for any other."""
    name = member(chunk, "type")
    error = member(member(chunk, "response") if name == FAILED else chunk, "error")
    if not error and ERROR not in (name, member(chunk, "object")) and name != FAILED:
        return None
    return kind_of(error, chunk)


def kind_of(error: Any, around: object = None) -> str:
    """Return the kind that an error states, or else what has it; OTHER if neither states one."""
    words = [member(error, name) for name in _NAMES[:2]] + [member(around, name) for name in _NAMES[1:]]
    for word in (*words, error):
        if isinstance(word, str | int) and not isinstance(word, bool) and _KIND.fullmatch(str(word)):
            return str(word)
    return OTHER
