"""A process for recordings in which a test is the clock, the flusher and the network."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from opentelemetry import context, trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import TracerProvider

from otel_llm import semconv
from otel_llm.export.records import AttributeValue, Record, RequestRecord, Segment
from otel_llm.instrumentation.core.committed_request import Request
from otel_llm.instrumentation.core.genai_metrics import Metrics
from otel_llm.instrumentation.core.recorder_environment import Flushable
from otel_llm.instrumentation.core.recording import Recording
from otel_llm.instrumentation.core.stats import Stats
from otel_llm.instrumentation.process.flusher import Flusher
from otel_llm.instrumentation.segments.chunks import FRAMING, Reading
from otel_llm.instrumentation.segments.model_chunks import KnownModels
from otel_llm.instrumentation.segments.statements import Statements

COMMIT_NS = 5_000_000_000
OFFSET_NS = 1_790_000_000_000_000_000
MS = 1_000_000


class WordReader:
    """Reads plain words: None is framing, everything else a token of content."""

    plain = True

    def __init__(self) -> None:
        self.reported = Statements()

    def plain_size(self, chunk: object) -> int:
        return 0 if chunk is None else 1

    def __call__(self, chunk: object) -> Reading:
        return FRAMING

    def basis(self, choice: int) -> str:
        return "chunk"


class FakeEnvironment:
    """`now_ns` is the time until somebody sets it; `sent` is all that was sent; nothing runs by itself."""

    sampling = "always"
    dropped = 0
    metrics: Metrics | None = None

    def __init__(self) -> None:
        self.now_ns = COMMIT_NS
        self.models = KnownModels()
        self.sent: list[Record] = []
        self.bugs: list[BaseException] = []
        self.urgent = 0
        self.urged: list[Flushable] = []
        """Who asked to be looked at since the last look."""
        self.flusher = Flusher(self.clock_ns, start=lambda run: None)
        self.stats = Stats()
        self._ids = itertools.count(1)

    def clock_ns(self) -> int:
        return self.now_ns

    def at(self, ms: float) -> None:
        """Set the time to so many ms after the commit."""
        self.now_ns = COMMIT_NS + int(ms * MS)

    def step(self) -> int | None:
        """Let the flusher look; return when it would look again, in ms after the commit."""
        self.urged = []
        due_ns = self.flusher.step(self.now_ns)
        return None if due_ns is None else (due_ns - COMMIT_NS) // MS

    def getrandbits(self, bits: int, /) -> int:
        return next(self._ids)

    def named(self, attributes: Mapping[str, AttributeValue]) -> dict[str, AttributeValue]:
        return dict(attributes)

    def provider(self) -> TracerProvider:
        return trace.NoOpTracerProvider()

    def resource(self) -> Resource:
        return Resource({})

    def send(self, records: Sequence[Record], *, urgent: bool = False) -> None:
        self.sent += records
        self.urgent += urgent

    def watch(self, recording: Flushable) -> None:
        self.flusher.add(recording)

    def urge(self, recording: Flushable) -> None:
        self.urged.append(recording)
        self.flusher.urge(recording)

    def warn(self, bug: BaseException) -> None:
        self.bugs.append(bug)

    def record(self, *, says_complete: bool = False) -> Recording:
        """Return a recording that was committed now, and announced."""
        request = Request("chat m", self.now_ns, OFFSET_NS, says_complete=says_complete)
        recording = Recording(self, request, WordReader())
        recording.announce(context.get_current())
        return recording

    def told(self) -> list[tuple[int, int, list[int], str | None]]:
        """Return the segments as (start, end, token times, outcome), times in ms after the commit."""
        return [
            (
                _ms(segment.start_ns),
                _ms(segment.end_ns),
                [_ms(time_ns) for time_ns in segment.times_ns],
                str(segment.attributes[semconv.OUTCOME]) if semconv.OUTCOME in segment.attributes else None,
            )
            for segment in self.sent
            if isinstance(segment, Segment)
        ]

    def requests(self) -> list[RequestRecord]:
        return [record for record in self.sent if isinstance(record, RequestRecord)]


def _ms(unix_ns: int) -> int:
    return (unix_ns - OFFSET_NS - COMMIT_NS) // MS
