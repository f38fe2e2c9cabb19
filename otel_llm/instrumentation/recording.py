"""One request from its commit to its end: what the readers append, when it is cut, how it ended. Ended exactly once."""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, Protocol

from opentelemetry.trace import TraceFlags

from otel_llm import semconv
from otel_llm.export.records import Origin
from otel_llm.instrumentation import request_span
from otel_llm.instrumentation.choices import Choices
from otel_llm.instrumentation.outcomes import (
    ABANDONED,
    CANCELLED,
    COMPLETED,
    DISCONNECTED,
    FAILURES,
    error_type,
    outcome_of,
)
from otel_llm.instrumentation.timeline import FLUSH_INTERVAL_NS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import FrameType

    from opentelemetry.context import Context
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.trace import TracerProvider

    from otel_llm.export.records import AttributeValue, Record, Segment
    from otel_llm.instrumentation.choices import Item, Reader
    from otel_llm.instrumentation.request_span import RequestSpan

P = ParamSpec("P")

FRAMES: Final = 64
"""How far up the stack the reader is looked for when a response is closed."""
BODY_ITERATORS: Final = frozenset({"iter_raw", "aiter_raw"})
"""The functions of httpx and httpx2 that close a response because its body has ended."""


class Host(Protocol):
    """What a recording needs of the process it runs in."""

    @property
    def clock_ns(self) -> Callable[[], int]:
        """The monotonic clock, ns."""

    @property
    def sampling(self) -> str:
        """Which streams are sent: always, or as their parent is sampled."""

    @property
    def dropped(self) -> int:
        """How many segments were dropped so far."""

    def getrandbits(self, bits: int, /) -> int:
        """Return a random number for an id."""

    def provider(self) -> TracerProvider:
        """Return the application's TracerProvider."""

    def resource(self) -> Resource:
        """Return who sends."""

    def send(self, records: Sequence[Record]) -> None:
        """Queue records."""

    def watch(self, recording: Recording) -> None:
        """Cut the recording from now on."""

    def urge(self, recording: Recording) -> None:
        """Cut the recording at once."""

    def warn(self, bug: BaseException) -> None:
        """Say, once, that we failed."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is known of a request when it is committed.

    `ours` are attributes under `otel_llm.` and `gen_ai` all others, both for segment 0 and the request span;
    `span_only` those for the request span alone. `says_complete`: the server declares each choice complete, so a body
    that ends before it did not end as the server meant it.
    """

    name: str
    commit_ns: int
    offset_ns: int
    choices: int = 1
    ours: Mapping[str, AttributeValue] = field(default_factory=dict)
    gen_ai: Mapping[str, AttributeValue] = field(default_factory=dict)
    span_only: Mapping[str, AttributeValue] = field(default_factory=dict)
    says_complete: bool = False


def inert_on_bug(
    method: Callable[Concatenate[Recording, P], None],
) -> Callable[Concatenate[Recording, P], None]:
    """Let a failure of ours end in one warning and a recording that does nothing any more, never in the host."""

    @functools.wraps(method)
    def guarded(self: Recording, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as bug:  # noqa: BLE001
            self.broken(bug)

    return guarded


def _discard(item: Item) -> None:
    """Take an item of a stream that is not recorded any more."""


class Recording:
    """Records one request.

    `append` is all that a reader calls for a chunk; it is the buffer's own `append`, but for a stream whose newest
    segment is an empty one: then the first token that comes wakes the flusher. Reading may happen on one thread and
    cutting on another: items are appended and taken by single operations of a list, and everything else is behind a
    lock that no chunk ever takes.
    """

    def __init__(self, host: Host, request: Request, reader: Reader) -> None:
        self.reader = reader
        self.clock_ns = host.clock_ns
        self._host = host
        self._request = request
        self._buffer: list[Item] = []
        self.append: Callable[[Item], None] = self._buffer.append
        self._lock = threading.Lock()
        self._choices: Choices | None = None
        self._span: RequestSpan | None = None
        self._done = False
        self._read_since_ns = request.commit_ns
        self._left_ns: int | None = None
        self._collected = False
        self._body_ended = False
        self._refs: list[weakref.ref[Any]] = []
        self._inner: Callable[[], Any] = _nothing

    @property
    def done(self) -> bool:
        """Return whether the recording ended, or was given up."""
        return self._done

    @property
    def announced(self) -> bool:
        """Return whether segment 0 was sent."""
        return self._span is not None

    @property
    def due_ns(self) -> int | None:
        """Return when this stream must say that it is silent (monotonic ns), None where it need not."""
        due_ns = None if self._choices is None else self._choices.due_ns
        return None if due_ns is None else due_ns - self._request.offset_ns

    @inert_on_bug
    def announce(self, context: Context) -> None:
        """Send segment 0: somebody waits. The request span is begun, or found, in `context`."""
        if self._done or self.announced:
            return
        request, host = self._request, self._host
        commit_ns = request.commit_ns + request.offset_ns
        resource = host.resource()
        self._span = request_span.begin(
            context,
            host.provider(),
            resource,
            request.name,
            commit_ns,
            request.ours,
            {**request.gen_ai, **request.span_only},
            host.getrandbits,
            lambda record: host.send([record]),
        )
        if host.sampling == "parent" and not self._span.context.trace_flags & TraceFlags.SAMPLED:
            self.append = _discard
        else:
            origin = Origin(self._span.context, resource)
            identity = {**request.gen_ai, **request.ours}
            self._choices = Choices(
                request.choices, commit_ns, request.offset_ns, origin, host.getrandbits, identity, self.reader
            )
            host.send(self._choices.commit())
        host.watch(self)

    @inert_on_bug
    def opened(self, stream: object, inner: object) -> None:
        """Watch a stream whose chunks `inner` (a generator, where there is one to ask whether it runs) produces."""
        self._read_since_ns = self.clock_ns()
        self._refs = [weakref.ref(stream, self._on_collected)]
        self._inner = weakref.ref(inner)

    @inert_on_bug
    def entered(self, loop: object) -> None:
        """Watch a loop over the stream: that it is dropped is all one ever sees of a `break`."""
        if not self._done:
            self._left_ns = None
            self._refs[1:] = [weakref.ref(loop, self._on_left)]

    # The next two run wherever the last reference goes, perhaps inside the garbage collector: no lock, no queue.

    def _on_left(self, _: object) -> None:
        if not self._done and self._left_ns is None:
            self._left_ns = self.clock_ns()

    def _on_collected(self, _: object) -> None:
        self._collected = True

    @inert_on_bug
    def exhausted(self) -> None:
        """Take note that the stream ran to its end."""
        self._finish(DISCONNECTED if self._request.says_complete and self._body_ended else COMPLETED, self.clock_ns())

    @inert_on_bug
    def failed(self, error: BaseException) -> None:
        """Take note that the stream, or the call that was to open it, raised `error`."""
        self._finish(outcome_of(error), self.clock_ns(), error_type(error))

    @inert_on_bug
    def closed(self) -> None:
        """Take note that the reader closed the stream."""
        left_ns = self._left()
        self._finish(CANCELLED, self.clock_ns() if left_ns is None else left_ns)

    @inert_on_bug
    def closing(self, frame: FrameType | None) -> None:
        """Take note that the response is being closed, by whoever `frame` says.

        Its own reader closes it at the end of its body and on errors: then the reader knows the outcome, and says so
        next. Anybody else is the application.
        """
        inner = self._inner()
        reading = getattr(inner, "gi_frame", None) or getattr(inner, "ag_frame", None)
        for _ in range(FRAMES):
            if frame is None:
                break
            if frame is reading:
                return
            if frame.f_code.co_name in BODY_ITERATORS:
                self._body_ended = True
            frame = frame.f_back
        self.closed()

    @inert_on_bug
    def tick(self, now_ns: int, *, leaving: bool = False) -> None:
        """Cut what arrived until `now_ns` (monotonic), or end a stream that was left or collected.

        A loop that was left may be entered again (to look at the first chunk before the rest is common): it has one
        flush interval for that. `leaving`: the process ends, and with it every stream.
        """
        if self._collected or leaving:
            self._forsaken()
            return
        segments: list[Segment] = []
        with self._lock:
            if self._done:
                return
            left_ns = self._left()
            if left_ns is None and self._choices is not None:
                segments = self._choices.take(self._drained()) + self._choices.cut(now_ns + self._request.offset_ns)
                self._arm()
        self._host.send(segments)
        if left_ns is not None and now_ns - left_ns >= FLUSH_INTERVAL_NS:
            self._finish(CANCELLED, left_ns)

    def _forsaken(self) -> None:
        left_ns = self._left()
        self._finish(ABANDONED if left_ns is None else CANCELLED, left_ns)

    def _left(self) -> int | None:
        """Return when the reader left its loop, None where it is, or came back, or reads in another way."""
        if self._left_ns is None:
            return None
        inner = self._inner()
        newest = self._buffer[-1] if self._buffer else self._left_ns
        resumed = (newest if isinstance(newest, int) else newest[0]) > self._left_ns
        if resumed or getattr(inner, "gi_running", False) or getattr(inner, "ag_running", False):
            self._left_ns = None
        return self._left_ns

    def _drained(self) -> list[Item]:
        items = self._buffer[:]
        del self._buffer[: len(items)]  # what was appended in between stays
        return items

    def _arm(self) -> None:
        if self._choices is not None and self._choices.quiet:
            self.append = self._append_waking
            if self._buffer:  # appended before the line above took effect
                self._host.urge(self)

    def _append_waking(self, item: Item) -> None:
        self._buffer.append(item)
        if self._choices is not None and self._choices.is_quiet(item):
            self.append = self._buffer.append
            self._host.urge(self)

    def _finish(self, outcome: str, at_ns: int | None, error: str | None = None) -> None:
        request = self._request
        with self._lock:
            if self._done:
                return
            self._done = True
            self.append = _discard
            self._refs = []
            segments: list[Segment] = []
            if self._choices is not None:
                segments = self._choices.take(self._drained())
                if at_ns is None:  # its last read
                    at_ns = (self._choices.newest_ns or 0) - request.offset_ns
                at_ns = max(at_ns, self._read_since_ns) if outcome == ABANDONED else at_ns
                dropped = self._host.dropped
                more: dict[str, AttributeValue] = {semconv.DROPPED_SEGMENTS: dropped} if dropped else {}
                segments += self._choices.last(at_ns + request.offset_ns, outcome, more)
        self._host.send(segments)
        self._end_span(outcome, (self._read_since_ns if at_ns is None else at_ns) + request.offset_ns, error)

    def _end_span(self, outcome: str, end_ns: int, error: str | None) -> None:
        if self._span is None:
            return
        choices = self._choices
        ours: dict[str, AttributeValue] = {semconv.OUTCOME: outcome}
        if choices is not None:
            ours = {
                semconv.OUTCOME: outcome if choices.failed else COMPLETED,
                semconv.TOKENS: choices.tokens,
                semconv.TOKEN_BASIS: choices.basis,
                semconv.SEGMENTS: choices.segments,
            }
        gen_ai = self.reader.span_attributes()
        if error is not None and ours[semconv.OUTCOME] in FAILURES:
            gen_ai[semconv.ERROR_TYPE] = error
        failure = (error or outcome) if ours[semconv.OUTCOME] in FAILURES else None
        self._span.end(end_ns, ours, gen_ai, failure)

    def detach(self) -> None:
        """Stop recording without a word: the stream goes on, unobserved."""
        self._done = True
        self.append = _discard
        self._refs = []

    def give_up(self) -> None:
        """Stop recording; the request span ends here, and says nothing of how the stream did."""
        span, self._span = self._span, None
        self.detach()
        if span is not None:
            with contextlib.suppress(Exception):
                span.end(self.clock_ns() + self._request.offset_ns, {}, {}, None)

    def broken(self, bug: BaseException) -> None:
        """Give the recording up because of a failure of ours."""
        self.give_up()
        self._host.warn(bug)


def _nothing() -> None:
    """Stand for the weak reference to a generator that there is none of."""
