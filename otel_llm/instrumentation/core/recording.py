"""One request from its commit to its end: appended readings, cuts, and the outcome. It ends exactly once."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from functools import partial, wraps
from typing import TYPE_CHECKING, Concatenate, NamedTuple, ParamSpec, Protocol, TypeVar

from opentelemetry.trace import TraceFlags

from otel_llm import semconv
from otel_llm.export import threads
from otel_llm.export.records import Origin, SpanEvent
from otel_llm.instrumentation.core import gpu, request_span
from otel_llm.instrumentation.core.genai_metrics import of_chunks, of_request, wants_chunks
from otel_llm.instrumentation.core.reader_liveness import ReaderLiveness
from otel_llm.instrumentation.core.request_span import AttachedSpan
from otel_llm.instrumentation.core.serving import current as serving_now
from otel_llm.instrumentation.core.stats import GIVEN_UP
from otel_llm.instrumentation.segments import outcomes
from otel_llm.instrumentation.segments.chunks import PLAIN
from otel_llm.instrumentation.segments.outcomes import COMPLETED, FAILURES
from otel_llm.instrumentation.segments.timeline import FLUSH_INTERVAL_NS
from otel_llm.instrumentation.segments.token_estimate import Estimates

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import FrameType

    from opentelemetry.context import Context
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.trace import SpanContext

    from otel_llm.export.records import AttributeValue, Segment
    from otel_llm.instrumentation.core.committed_request import Request
    from otel_llm.instrumentation.core.recorder_environment import RecorderEnvironment
    from otel_llm.instrumentation.core.request_span import RequestSpan
    from otel_llm.instrumentation.segments.choices import Choices, Item, Reader
    from otel_llm.instrumentation.segments.chunks import Mark


class Breakable(Protocol):
    """An object that can stop working without harm to the host."""

    def broken(self, bug: BaseException) -> None:
        """Stop working because of a failure of ours."""


P = ParamSpec("P")
B = TypeVar("B", bound=Breakable)


def inert_on_bug(method: Callable[Concatenate[B, P], None]) -> Callable[Concatenate[B, P], None]:
    """Turn a failure of ours into one warning and an inert recording; it never reaches the host."""

    @wraps(method)
    def guarded(self: B, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as bug:  # noqa: BLE001
            self.broken(bug)

    return guarded


class Ending(NamedTuple):
    """The end of a request: attributes under `otel_llm.`, the others, and the status's description if it failed."""

    outcome: str
    ours: dict[str, AttributeValue]
    gen_ai: dict[str, AttributeValue]
    failure: str | None


def ending(
    request: Request, choices: Choices | None, outcome: str, error: str | None, reported: Mapping[str, AttributeValue]
) -> Ending:
    """Return the end of a request with this `outcome`; `error` is an `error.type`, `reported` the reply's statements.

    If the server declared every choice complete, the request is completed, whatever followed. `choices` None: no
    segment was sent.
    """
    ours: dict[str, AttributeValue] = {semconv.OUTCOME: outcome}
    gen_ai = dict(reported)
    if choices is not None:
        outcome = outcome if choices.failed else COMPLETED
        ours = {
            semconv.OUTCOME: outcome,
            semconv.TOKENS: choices.tokens,
            semconv.TOKEN_BASIS: choices.basis,
            semconv.SEGMENTS: choices.segments,
            **choices.first_times_s,
        }
        if choices.first_chunk_ns is not None and not request.server:
            waited_ns = choices.first_chunk_ns - request.commit_ns - request.offset_ns
            gen_ai[semconv.GEN_AI_TIME_TO_FIRST_CHUNK] = max(waited_ns, 0) / 1e9
    failure = (error or outcome) if outcome in FAILURES else None
    if failure is not None and error is not None:
        gen_ai[semconv.ERROR_TYPE] = error
    return Ending(outcome, ours, gen_ai, failure)


def _discard(item: Item) -> None:
    """Drop an item of a stream that is no longer recorded."""


class Recording:
    """The recording of one request.

    `append` is all that a reader calls for a chunk; it is the buffer's own `append`, except after an empty segment:
    then the first token wakes the flusher. `last_byte_ns` is the time of the newest byte (monotonic), 0 if no bytes are
    seen; who sees them sets it. Reading may happen on one thread and cutting on another: items are appended and removed
    by single operations of a list, and everything else is behind a lock that no chunk ever takes.
    """

    def __init__(self, environment: RecorderEnvironment, request: Request, reader: Reader) -> None:
        self.reader = reader
        self.clock_ns = environment.clock_ns
        self.last_byte_ns = 0
        self.estimates = Estimates(partial(request.model_chunks, environment.models))
        self._environment = environment
        self._request = request
        self._buffer: list[Item] = []
        self._lock = threads.lock()
        self._choices: Choices | None = None
        self._span: RequestSpan | None = None
        self._done = False
        self._unsampled = False
        self._wakes = False  # whether the next token wakes the flusher
        self._announced = False
        self._liveness = ReaderLiveness(environment.clock_ns, request.commit_ns)
        self._facts: dict[str, AttributeValue] = {}
        self._unsaid: Mapping[str, AttributeValue] = {}
        self._gpu: gpu.Mark | None = None
        self._outer: Reader | None = None
        self._beneath: str | None = None
        self.failed_attempt: tuple[int, Mapping[str, AttributeValue]] | None = None  # when, and its attributes
        self._route()

    def _route(self) -> None:
        """Choose what `append` does with an item, by the state of the recording."""
        self.append: Callable[[Item], None] = (
            _discard if self._done or self._unsampled else self._append_waking if self._wakes else self._buffer.append
        )

    @property
    def done(self) -> bool:
        """Return whether the recording ended, or was given up."""
        return self._done

    @property
    def announced(self) -> bool:
        """Return whether segment 0 was sent."""
        return self._announced

    @property
    def context(self) -> SpanContext | None:
        """Return the request span's context, None before there is one."""
        return None if self._span is None else self._span.context

    @property
    def slo_class(self) -> str | None:
        """Return the request's SLO class, None if it has none."""
        stated = self._request.ours.get(semconv.SLO_CLASS)
        return None if stated is None else str(stated)

    @property
    def due_ns(self) -> int | None:
        """Return the instant at which this stream must send an empty segment (monotonic ns), None if it need not."""
        due_ns = None if self._choices is None else self._choices.due_ns
        return None if due_ns is None else due_ns - self._request.offset_ns

    @inert_on_bug
    def begin(self, context: Context) -> None:
        """Begin the request span in `context`, without attributes: the request may never be announced."""
        if not self._done and self._span is None:
            self._span = self._span_in(context, self._environment.resource(), {}, {})

    def _span_in(
        self,
        context: Context,
        resource: Resource,
        ours: Mapping[str, AttributeValue],
        gen_ai: Mapping[str, AttributeValue],
    ) -> RequestSpan:
        request, environment = self._request, self._environment
        return request_span.begin(
            context,
            environment.provider(),
            resource,
            request.name,
            request.commit_ns + request.offset_ns,
            ours,
            gen_ai,
            environment.getrandbits,
            lambda record: environment.send([record]),
            server=request.server,
        )

    @inert_on_bug
    def announce(self, context: Context, late: Mapping[str, AttributeValue] | None = None) -> None:
        """Send segment 0: a user waits. The request span is begun, or found, in `context`, unless it was before.

        `late`: attributes learned since the commit.
        """
        if self._done or self._announced:
            return
        self._announced = True
        if late:
            self._request = self._request.learned(late)
        request, environment = self._request, self._environment
        resource = environment.resource()
        if self._span is None:
            self._span = self._span_in(context, resource, request.ours, {**request.gen_ai, **request.span_only})
        else:
            self._span.say({**request.gen_ai, **request.span_only, **request.ours})
        if request.server:
            self._gpu = gpu.mark() if request.gpus else None
        elif (serving := serving_now.get()) is not None:
            serving.join(self)
        if environment.sampling == "parent" and not self._span.context.trace_flags & TraceFlags.SAMPLED:
            self._unsampled = True
            self._route()
        else:
            origin = Origin(self._span.context, resource)
            identity = {**request.gen_ai, **request.ours}
            self._choices = request.streams(origin, environment.getrandbits, identity, self.reader, self.estimates)
            if wants_chunks(environment.metrics, self._span, request):
                self._choices.gaps_ns = []
            environment.send(self._choices.commit())
        environment.stats.begin(request.stack, self.slo_class)
        environment.watch(self)

    def read_by(self, reader: Reader) -> None:
        """Use another reader from now on, before anything was read."""
        self.reader = reader
        if self._choices is not None:
            self._choices.reader = reader

    def hand_over(self, outer: Reader, stream: object, inner: object) -> None:
        """Get the end from another stream, which is made of this one, `inner` between them; nothing was read yet.

        That stream passes its reader `outer` with its events. This one only remembers how it ended, unless it raises.
        """
        self._outer = outer
        self._liveness = ReaderLiveness(self.clock_ns, self._request.commit_ns)
        self._liveness.open(stream, inner)

    def _is_beneath(self, reader: Reader | None) -> bool:
        return self._outer is not None and reader is not self._outer

    @inert_on_bug
    def opened(self, stream: object, inner: object, reader: Reader | None = None) -> None:
        """Note that there is a stream to read, which gets its chunks from `inner`."""
        if not self._is_beneath(reader):
            self._liveness.open(stream, inner)

    @inert_on_bug
    def entered(self, loop: object, reader: Reader | None = None) -> None:
        """Note that `loop` reads the stream."""
        if not self._done and not self._is_beneath(reader):
            self._liveness.enter(loop)

    @inert_on_bug
    def exhausted(self, reader: Reader | None = None) -> None:
        """Note that the stream ran to its end."""
        cut_off = self._request.says_complete and self._liveness.body_ended
        outcome = self._beneath or (outcomes.DISCONNECTED if cut_off else outcomes.COMPLETED)
        if self._is_beneath(reader):
            self._beneath = outcome
        else:
            self._finish(outcome, self.clock_ns())

    @inert_on_bug
    def failed(self, error: BaseException) -> None:
        """Note that the stream, or the call that was to open it, raised `error`."""
        self._finish(outcomes.outcome_of(error), self.clock_ns(), outcomes.error_type(error))

    @inert_on_bug
    def closed(self, reader: Reader | None = None) -> None:
        """Note that the reader closed the stream."""
        if not self._is_beneath(reader):
            self.left()

    @inert_on_bug
    def left(self) -> None:
        """Note that the client of the reply has left."""
        left_ns = self._left_ns()
        self._finish(outcomes.CANCELLED, self.clock_ns() if left_ns is None else left_ns)

    @inert_on_bug
    def ended(self, outcome: str, error: str | None = None, at_ns: int | None = None) -> None:
        """Note the end as the stream's server knows it, at `at_ns` or now; `error` is an `error.type`."""
        if self._outer is not None and error is None:
            self._beneath = self._beneath or outcome
        else:
            self._finish(outcome, self.clock_ns() if at_ns is None else at_ns, error)

    @inert_on_bug
    def closing(self, frame: FrameType | None) -> None:
        """Note that the stream's response is being closed, in `frame`.

        For a stream that is being collected this means nothing: the next tick finds the reason.
        """
        if not self._liveness.closed_by_reader(frame) and not self._liveness.collected:
            self.closed()

    def take(self, at_ns: int, mark: Mark) -> int:
        """Append the tokens of a chunk that was read at `at_ns` to one choice; return their recorded time.

        Both are monotonic ns; if the choice's newest segment was cut since the reading, it is that segment's end.
        """
        try:
            with self._lock:
                at_ns = max(at_ns, self.recorded_until_ns(mark[0]))
                self.append(at_ns if mark == PLAIN[0] else (at_ns, (mark,)))
        except Exception as bug:  # noqa: BLE001
            self.broken(bug)
        return at_ns

    def recorded_until_ns(self, choice: int) -> int:
        """Return the end of a choice's newest segment, monotonic ns; the commit before there is one."""
        choices, request = self._choices, self._request
        return request.commit_ns if choices is None else choices.end_ns(choice) - request.offset_ns

    @inert_on_bug
    def event(self, name: str, at_ns: int, attributes: Mapping[str, AttributeValue]) -> None:
        """Add an event at `at_ns` (monotonic ns) to the request span, while it is open."""
        if self._span is not None and not self._done:
            self._span.event(SpanEvent(name, at_ns + self._request.offset_ns, attributes))

    def attributes(self, more: Mapping[str, AttributeValue]) -> None:
        """Add attributes to the request span at its end; from any thread, the newest value of a name wins."""
        self._facts.update(more)  # one operation of a dict: no other thread sees half of it

    def identify(self, more: Mapping[str, AttributeValue]) -> None:
        """Add attributes to the request span at its end, and to the next segment, so that they are known meanwhile."""
        self._facts.update(more)
        self._unsaid = {**self._unsaid, **more}

    @inert_on_bug
    def tick(self, now_ns: int, *, urgent: bool = False, complete: bool = False, exiting: bool = False) -> None:
        """Cut the tokens until `now_ns` (monotonic), or end a stream that was left or collected.

        A loop that was left may be entered again (reading the first chunk before the rest is common): it has one flush
        interval for that, unless `complete`. `urgent`: the segments are sent at once; `exiting`: the process ends, and
        with it every stream.
        """
        collected = self._liveness.collected  # read first: a loop is gone no later than its stream
        left_ns = self._left_ns()
        if collected or exiting:
            self._finish(outcomes.ABANDONED if left_ns is None else outcomes.CANCELLED, left_ns)
        elif left_ns is None:
            self._cut(now_ns, urgent=urgent)
        elif complete or now_ns - left_ns >= FLUSH_INTERVAL_NS:
            self._finish(outcomes.CANCELLED, left_ns)

    def _left_ns(self) -> int | None:
        newest = self._buffer[-1] if self._buffer else None
        return self._liveness.left_ns(newest[0] if isinstance(newest, tuple) else newest)

    def _cut(self, now_ns: int, *, urgent: bool) -> None:
        with self._lock:
            if self._done or self._choices is None:
                return
            segments = self._choices.take(self._drained())
            unix_ns = now_ns + self._request.offset_ns
            segments += self._choices.cut(unix_ns, self._closing_attributes, self.last_byte_ns)
            if self._unsaid and segments:
                unsaid, self._unsaid = self._unsaid, {}
                segments[0] = replace(segments[0], attributes={**unsaid, **segments[0].attributes})
            if self._choices.quiet:
                self._wakes = True
                self._route()
                if self._buffer:  # appended before the line above took effect
                    self._environment.urge(self)
            gaps_ns = self._choices.take_gaps()
        self._environment.send(segments, urgent=urgent)
        self._put_gaps(gaps_ns)

    def _put_gaps(self, gaps_ns: list[int]) -> None:
        if gaps_ns and self._span is not None and self._environment.metrics is not None:
            reported = self.reader.reported.span_attributes()
            self._environment.metrics.put(of_chunks(self._request, gaps_ns, self._span.context, reported))

    def _closing_attributes(self) -> dict[str, AttributeValue]:
        alone = self._choices is not None and self._choices.count == 1
        attributes = self._environment.named(self.reader.reported.segment_attributes(alone=alone))
        if dropped := self._environment.dropped:
            attributes[semconv.DROPPED_SEGMENTS] = dropped
        return attributes

    def _drained(self) -> list[Item]:
        items = self._buffer[:]
        del self._buffer[: len(items)]  # what was appended in between stays
        return items

    def _append_waking(self, item: Item) -> None:
        self._buffer.append(item)
        if self._choices is not None and self._choices.is_quiet(item):
            self._wakes = False
            self._route()
            self._environment.urge(self)

    def _finish(self, outcome: str, at_ns: int | None, error: str | None = None) -> None:
        # With None: the last reading, unless a later time was recorded already.
        if self._done:  # also checked before the lock, which in a forked child may never be released
            return
        if (failure := self.reader.reported.failure) is not None:  # whatever its reader made of it
            outcome, error = outcomes.ERROR, error or failure
        offset_ns = self._request.offset_ns
        with self._lock:
            if self._done:
                return
            self._done = True
            self._route()
            self._liveness.end()
            segments: list[Segment] = []
            choices = self._choices
            if choices is not None:
                segments = choices.take(self._drained())
                if at_ns is None and choices.newest_ns is not None:
                    at_ns = choices.newest_ns - offset_ns
            if at_ns is None:
                at_ns = self._liveness.opened_ns
            if choices is not None:
                segments += choices.last(at_ns + offset_ns, outcome, {**self._unsaid, **self._closing_attributes()})
        self._environment.send(segments, urgent=True)
        if self.announced:
            tokens, sent = (0, 0) if choices is None else (choices.tokens, choices.segments)
            self._environment.stats.end(self._request.stack, outcome, tokens, sent)
        if choices is not None:
            self._put_gaps(choices.take_gaps())
        self._end_span(outcome, at_ns + offset_ns, error)

    def _end_span(self, outcome: str, end_ns: int, error: str | None) -> None:
        if self._span is None:
            return
        choices = self._choices
        count = self._request.choices if choices is None else choices.count
        reported = self._environment.named(self.reader.reported.span_attributes(count))
        ended, ours, gen_ai, failure = ending(self._request, choices, outcome, error, reported)
        # Facts that only we know: an attached span gets them too.
        facts = self._facts if self._gpu is None else {**gpu.attributes(self._gpu), **self._facts}
        self._span.end(end_ns, {**facts, **ours}, gen_ai, failure)
        if (metrics := self._environment.metrics) is not None and metrics.wanted:
            attached = isinstance(self._span, AttachedSpan)
            context = self._span.context
            metrics.put(of_request(self._request, choices, context, end_ns, ended, gen_ai, failure, attached=attached))

    def detach(self) -> None:
        """Stop recording without a last segment: the stream goes on, unobserved."""
        self._done = True
        self._route()
        self._liveness.end()

    def give_up(self) -> None:
        """Stop recording; the request span ends here, without an outcome."""
        span, self._span = self._span, None
        if self._announced and span is not None and not self._done:
            self._environment.stats.end(self._request.stack, GIVEN_UP, 0, 0)
        self.detach()
        if span is not None:
            with contextlib.suppress(Exception):
                span.end(self.clock_ns() + self._request.offset_ns, {}, {}, None)

    def broken(self, bug: BaseException) -> None:
        """Stop the recording because of a failure of ours."""
        self.give_up()
        self._environment.warn(bug)
