"""The records of an application: segments of a stream's token times, and request spans that no SDK sends."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Final

from opentelemetry.trace import SpanKind

from otel_llm import semconv

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opentelemetry.sdk.resources import Resource
    from opentelemetry.trace import SpanContext

Scalar = str | bool | int | float
AttributeValue = Scalar | tuple[str, ...]

CONTENT: Final = 0
REASONING: Final = 1
TOOL: Final = 2
KIND_NAMES: Final = ("content", "reasoning", "tool")
"""Names on the wire, in the order of their codes; content is the default and is not sent."""

PLAIN_MARK: Final = 1 << 2
"""One token of content: an event without attributes."""


def mark(kind: int, count: int) -> int:
    """Pack an event's attributes: the kind's code in the lowest two bits, the count of tokens above."""
    return count << 2 | kind


def mark_attributes(packed: int) -> dict[str, str | int]:
    """Return the attributes of a token event with this mark; defaults are left out."""
    attributes: dict[str, str | int] = {}
    if packed >> 2 != PLAIN_MARK >> 2:
        attributes[semconv.TOKEN_COUNT] = packed >> 2
    if packed & 3 != CONTENT:
        attributes[semconv.TOKEN_KIND] = KIND_NAMES[packed & 3]
    return attributes


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """The common data of a request's segments: the request span, which is their parent, and the resource."""

    parent: SpanContext
    resource: Resource


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """The tokens that arrived from `start_ns` to `end_ns`, and no others.

    Times are unix ns. `times_ns` has one entry an event, non-decreasing; `marks` has one `mark` for each of them, or is
    None if every event is one token of content.
    """

    origin: Origin
    span_id: int
    start_ns: int
    end_ns: int
    times_ns: Sequence[int]
    marks: Sequence[int] | None
    attributes: Mapping[str, AttributeValue]

    @property
    def name(self) -> str:
        """Return the span's name."""
        return semconv.SEGMENT_SPAN

    @property
    def trace_id(self) -> int:
        """Return the trace id of the request."""
        return self.origin.parent.trace_id


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """An event of a request at `time_ns` (unix ns)."""

    name: str
    time_ns: int
    attributes: Mapping[str, AttributeValue]


@dataclass(frozen=True, slots=True, eq=False)
class RequestRecord:
    """A request span that no TracerProvider of the application carries.

    Times are unix ns; `parent` is the span that was current at the commit, None for a root; `failure` is the status's
    description if the request failed, None for an unset status. `events` are in order of time.
    """

    context: SpanContext
    parent: SpanContext | None
    resource: Resource
    name: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, AttributeValue]
    failure: str | None
    kind: SpanKind = SpanKind.CLIENT
    events: Sequence[SpanEvent] = ()

    @property
    def trace_id(self) -> int:
        """Return the trace id."""
        return self.context.trace_id


Record = Segment | RequestRecord


@cache
def version() -> str:
    """Return the version of the installed distribution, the instrumentation scope's version on the wire."""
    try:
        return metadata.version("otel-llm")
    except metadata.PackageNotFoundError:  # run from a source tree that was never installed
        return "0"
