"""The facts of a stream as a rule reads them: at an instant, now or in the past, by what is known now.

`READ` has the function of each fact; the docstring of `facts.py` has the steps to add one.

The engine looks back over a stream: `engine/history.py` builds a stream of fewer tokens and reads its facts. So a fact
must follow from the times and kinds of tokens in `Snapshot.stream`. `Snapshot.view` has present values only; the engine
does not look back past a change of identity, nor past the newest byte: of the bytes before it nothing is known, so
`silence_seconds` is missing there, and what was found of a condition until then stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from otel_llm.rules.language.facts import SILENCE, STREAM_FACTS
from otel_llm.slo.live.inflight import Line

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_llm.formats.records import StreamKey
    from otel_llm.rules.language.tokens import Value
    from otel_llm.slo.live.inflight import InFlight
    from otel_llm.slo.stream import Stream

COUNTING: Final = ("token_basis", "token_ratio_learned")
"""The facts on how tokens are counted; a stream has them from its first token on."""
IDENTITY: Final = ("slo_class", "model", "instance", "measured_at", "exact_resume", *COUNTING)
"""The facts of identity; a stream keeps the others from its first segment on."""


class StreamView(Protocol):
    """An in-flight stream as the engine reads it; instants are on the stream's own axis.

    A collector implements it by `LiveStream`, from segments, and a relay by `OwnStream`, which has tokens but no
    segments. A new property also goes into `View` of `tests/rules/scripted.py`, `benchmarks/rules_speed.py` and
    `examples/migration-triggers/watching.py`.
    """

    @property
    def key(self) -> StreamKey:
        """Return the key of the stream."""

    @property
    def slo_class(self) -> str:
        """Return the SLO class; here and below "" if unknown."""

    @property
    def model(self) -> str:
        """Return the requested model."""

    @property
    def instance(self) -> str:
        """Return the replica that serves it."""

    @property
    def measured_at(self) -> str:
        """Return the place of measurement: client, relay or server."""

    @property
    def exact_resume(self) -> bool:
        """Return whether the stream's owner can resume it token for token."""

    @property
    def token_basis(self) -> str | None:
        """Return how its tokens are counted, None if that is not known."""

    @property
    def token_ratio_learned(self) -> bool | None:
        """Return whether an estimate of its tokens uses what was learned of the model, None if that is not known."""

    @property
    def counted_since_ns(self) -> int | None:
        """Return the instant from which its tokens are counted as they are now; None: from the first on."""

    @property
    def last_byte_ns(self) -> int:
        """Return when the newest byte of the reply was received, framing included; 0 if that is not known."""

    @property
    def stream(self) -> Stream:
        """Return the tokens that were applied."""

    @property
    def watermark_ns(self) -> int:
        """Return the end of the last segment that has no missing one before it."""

    @property
    def has_gap(self) -> bool:
        """Return whether a segment is missing now."""

    @property
    def ageless(self) -> bool:
        """Return whether nothing can be missing up to any now: the process observes the stream itself."""

    @property
    def offset_ns(self) -> int:
        """Return the stream's now less the collector's; it does not shrink."""


class Snapshot:
    """The facts of one stream from its last token on, as long as no other arrives.

    With `stream`, another stream of fewer tokens (see `history`), the facts as they were after those; with
    `last_byte_ns`, after that byte.
    """

    __slots__ = ("_steps", "_steps_ns", "ageless", "has_gap", "last_byte_ns", "lines", "stream", "view", "watermark_ns")

    def __init__(self, view: StreamView, stream: Stream | None = None, last_byte_ns: int | None = None) -> None:
        self.view = view
        self.stream = view.stream if stream is None else stream
        self.lines = self.stream.lines()
        self.last_byte_ns = max(self.stream.last_ns, view.last_byte_ns if last_byte_ns is None else last_byte_ns)
        self.ageless = view.ageless
        self.watermark_ns = _FOREVER_NS if self.ageless else view.watermark_ns
        self.has_gap = view.has_gap
        self._steps: InFlight | None = None
        self._steps_ns = 0

    def line(self, name: str) -> Line:
        """Return a linear fact's line."""
        if name == _AGE:
            return _NO_AGE if self.ageless else Line(None, 1, self.watermark_ns)
        if name == SILENCE:
            return Line(None, 1, self.last_byte_ns)
        line: Line = getattr(self.lines, _LINES[name])
        return line

    def value(self, name: str, x_ns: int) -> Value | None:
        """Return a fact at an instant not before the last token; None if it is missing."""
        return READ[name](self, x_ns)

    def age_ns(self, x_ns: int) -> int:
        """Return the age of the facts at an instant."""
        return 0 if self.ageless else x_ns - self.watermark_ns

    def at(self, x_ns: int) -> InFlight:
        """Return all facts of the stream at an instant; the last result is cached."""
        if self._steps is None or self._steps_ns != x_ns:
            self._steps, self._steps_ns = self.stream.at(x_ns), x_ns
        return self._steps


_AGE: Final = "fact_age_seconds"
_NO_AGE: Final = Line(0, 0, 0)
_FOREVER_NS: Final = 1 << 64
"""The watermark of facts that do not age; later than any instant."""
_LINES: Final = {fact.name: fact.line for fact in STREAM_FACTS if fact.line}


def _ttft(snapshot: Snapshot, _x_ns: int) -> float | None:
    stream = snapshot.stream
    return (stream.times_ns[0] - stream.commit_ns) / 1e9 if stream.times_ns else None


def _silence(snapshot: Snapshot, x_ns: int) -> float | None:
    # Which bytes came before the newest is not known.
    return None if x_ns < snapshot.last_byte_ns else (x_ns - snapshot.last_byte_ns) / 1e9


READ: Final[dict[str, Callable[[Snapshot, int], Value | None]]] = {
    "slo_class": lambda s, _x: s.view.slo_class,
    "model": lambda s, _x: s.view.model,
    "instance": lambda s, _x: s.view.instance,
    "measured_at": lambda s, _x: s.view.measured_at,
    "exact_resume": lambda s, _x: s.view.exact_resume,
    "token_basis": lambda s, _x: s.view.token_basis if s.stream.times_ns else None,
    "token_ratio_learned": lambda s, _x: s.view.token_ratio_learned if s.stream.times_ns else None,
    "tokens": lambda s, _x: s.stream.tokens,
    "tokens_read": lambda s, _x: s.stream.running.count,
    "ttft_seconds": _ttft,
    "age_seconds": lambda s, x: s.lines.age.value(x) / 1e9,
    "gap_seconds": lambda s, x: s.lines.gap.value(x) / 1e9,
    "silence_seconds": _silence,
    "idle_seconds": lambda s, x: s.lines.idle.value(x) / 1e9,
    "idle_decode_seconds": lambda s, x: s.lines.idle_decode.value(x) / 1e9,
    "runway_seconds": lambda s, x: s.lines.runway.value(x) / 1e9,
    "rate_tokens_per_second": lambda s, _x: s.at(s.stream.last_ns).rate_tokens_per_second,
    "deadlines": lambda s, x: s.at(x).deadlines,
    "deadline_misses": lambda s, x: s.at(x).deadline_misses,
    "fluidity_index": lambda s, x: s.at(x).fluidity_index,
    "fact_age_seconds": lambda s, x: s.age_ns(x) / 1e9,
}
"""The function that reads each fact of the scope `stream`; a test compares its keys with the table of facts."""
