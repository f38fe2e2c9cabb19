"""What one endpoint did not get: counted while it is away, and reported in one line when a process ends."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from otel_llm import semconv
from otel_llm.export.records import Segment

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from otel_llm.export.host_log import Shown
    from otel_llm.export.records import Record

MOST_STREAMS: Final = 10_000
"""The most streams that are counted: an endpoint that is away for long must not fill the memory."""


class Losses:
    """The segments that were lost, and their streams: choices of requests."""

    __slots__ = ("_streams", "segments")

    def __init__(self) -> None:
        self.segments = 0
        self._streams: set[tuple[int, object]] = set()

    def add(self, records: Iterable[Record], most: int | None = None) -> int:
        """Add the segments among some records, `most` of them: all by default; return how many they are."""
        lost = [record for record in records if isinstance(record, Segment)][:most]
        self.segments += len(lost)
        for segment in lost:
            if len(self._streams) < MOST_STREAMS:
                self._streams.add((segment.origin.parent.span_id, segment.attributes.get(semconv.CHOICE, 0)))
        return len(lost)

    def with_all_of(self, records: Iterable[Record]) -> Losses:
        """Return these losses and further ones."""
        both = Losses()
        both.segments = self.segments
        both._streams = set(self._streams)
        both.add(records)
        return both

    def __str__(self) -> str:
        """Return how many segments of how many streams."""
        streams = f"{MOST_STREAMS} streams or more"
        if len(self._streams) < MOST_STREAMS:
            streams = _plural(len(self._streams), "stream")
        return f"{_plural(self.segments, 'segment')} of {streams}"


@dataclass(frozen=True, slots=True)
class Undelivered:
    """What an endpoint did not get when a process ends.

    `since_s` (unix): when the first attempt began after the endpoint last had everything.
    """

    losses: Losses
    where: Shown
    since_s: float
    reason: Shown

    def __str__(self) -> str:
        """Return a sentence without its end."""
        since = datetime.fromtimestamp(self.since_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return f"{self.losses} were not delivered to {self.where}, since {since} ({self.reason})"


def tell(found: Sequence[Undelivered]) -> bool:
    """Say on standard error what endpoints did not get, in one line; return whether there was anything to say.

    Not in the host's log, which may be put away when its process ends.
    """
    if found and sys.stderr is not None:
        with contextlib.suppress(Exception):  # it is closed, or a pipe without a reader
            sys.stderr.write(f"otel_llm: {'; '.join(map(str, found))}\n")
            sys.stderr.flush()
    return bool(found)


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
