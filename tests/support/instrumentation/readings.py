"""What a chunk carries, in a form that tests compare."""

from __future__ import annotations

from otel_llm.export.records import CONTENT
from otel_llm.instrumentation.segments.chunks import Reading, sized_mark


def in_ones(carries: int | Reading) -> Reading:
    """Return a reading with one token in place of each text that the server did not count."""
    reading = sized_mark(CONTENT, carries) if isinstance(carries, int) else carries
    return tuple((choice, kind, 1 if count < 0 else count, finished) for choice, kind, count, finished in reading)
