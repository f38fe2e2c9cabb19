"""The valid parts of a client's W3C headers: OpenTelemetry's propagators write others into the log, whole.

The rules are those of W3C Trace Context and W3C Baggage, with the limits of OpenTelemetry.
"""

from __future__ import annotations

import re
from typing import Final

TRACEPARENT_CHARS: Final = 512
TRACESTATE_CHARS, TRACESTATE_MEMBERS = 8192, 32
BAGGAGE_CHARS, BAGGAGE_MEMBERS, BAGGAGE_MEMBER_CHARS = 8192, 180, 4096

_SPACES: Final = " \t"
_NO_SPACES: Final = str.maketrans("", "", _SPACES)
_KEY: Final = r"[!#-'*+\-.0-9A-Z^-z|~]+"
_VALUE: Final = r"[!#-+\--:<-\[\]-~]*"
_PAIR: Final = rf"{_KEY}[ \t]*=[ \t]*{_VALUE}"
_BAGGAGE_MEMBER: Final = re.compile(rf"{_PAIR}(?:[ \t]*;[ \t]*(?:{_PAIR}|{_KEY}))*")
_TRACESTATE_KEY: Final = r"(?:[a-z][_0-9a-z\-*/]{0,255}|[a-z0-9][_0-9a-z\-*/]{0,240}@[a-z][_0-9a-z\-*/]{0,13})"
_TRACESTATE_MEMBER: Final = re.compile(rf"{_TRACESTATE_KEY}=[ -+\--<>-~]{{0,255}}[!-+\--<>-~]")


def traceparent_of(header: str) -> str:
    """Return a `traceparent` that can be one, else an empty text."""
    return header if len(header) <= TRACEPARENT_CHARS else ""


def tracestate_of(header: str) -> str:
    """Return a valid `tracestate`, else an empty text: it is all or nothing."""
    if len(header) > TRACESTATE_CHARS:
        return ""
    members = [member for part in header.split(",") if (member := part.strip(_SPACES))]
    valid = len(members) <= TRACESTATE_MEMBERS and all(map(_TRACESTATE_MEMBER.fullmatch, members))
    return ",".join(members) if valid else ""


def baggage_of(header: str) -> str:
    """Return the valid members of a `baggage`, without spaces, as many as the limits allow."""
    members: list[str] = []
    room = BAGGAGE_CHARS
    for part in header.split(","):
        member = part.strip(_SPACES)
        if len(member) > BAGGAGE_MEMBER_CHARS or _BAGGAGE_MEMBER.fullmatch(member) is None:
            continue
        member = member.translate(_NO_SPACES)  # there are none in a value
        room -= len(member) + 1
        if room < 0 or len(members) == BAGGAGE_MEMBERS:
            break
        members.append(member)
    return ",".join(members)
