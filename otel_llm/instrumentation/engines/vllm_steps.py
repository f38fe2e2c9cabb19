"""The steps of vLLM's engine as token times of the followed requests.

Runs in the event loop of vLLM's API server, once per step of the engine: for each followed request one look-up and one
append. Facts of a step as a whole (the number of its requests, whether a prefill ran along) are summed up once; a
request gets the difference between its first step and its last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_llm import semconv
from otel_llm.export.clock import wall_ns
from otel_llm.export.records import CONTENT
from otel_llm.instrumentation.process import runtime
from otel_llm.instrumentation.segments.outcomes import ERROR

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from otel_llm.export.records import AttributeValue
    from otel_llm.instrumentation.core.recording import Recording
    from otel_llm.instrumentation.engines.engine_request import EngineReader

FOREIGN_NS: Final = 10_000_000_000
"""An engine's clock that is ahead of ours, or behind by more than this, is another machine's: then ours counts."""

QUEUED, SCHEDULED, PREEMPTED = 1, 2, 3  # vllm.v1.engine.EngineCoreEventType
ABORTED, FAILED = 2, 3  # vllm.v1.engine.FinishReason


class Group:
    """The engine requests that make up one recording of our own: one, or one for each choice."""

    __slots__ = ("_reader", "_unfinished", "recording")

    def __init__(self, recording: Recording, reader: EngineReader, choices: int) -> None:
        self.recording = recording
        self._reader = reader
        self._unfinished = choices

    def ended(self, stream: Stream, at_ns: int, reason: int | None) -> None:
        """Note that one of them ended; the recording ends with the last, or with the first bad end.

        `reason` is vLLM's finish reason, None where a stop string ended it.
        """
        recording = self.recording
        self._unfinished -= 1
        self._reader.count(stream.tokens)
        recording.attributes(stream.facts())
        if reason == ABORTED:
            recording.closed()
        elif reason == FAILED:
            recording.ended(ERROR, "engine_error")
        elif self._unfinished <= 0:
            recording.exhausted()
        else:
            recording.append((at_ns, ((stream.choice, CONTENT, 0, True),)))


class Stream:
    """One request of the engine: one choice of a recording.

    `group` is None where the middleware decides how the request ends.
    """

    __slots__ = (
        "_first",
        "_occupancy",
        "_queued",
        "_scheduled",
        "_steps",
        "_watch",
        "choice",
        "fresh",
        "group",
        "kinds",
        "last",
        "mixed",
        "preemptions",
        "recording",
        "tokens",
    )

    def __init__(
        self, watch: Watch, recording: Recording, choice: int, kinds: dict[int, int], group: Group | None
    ) -> None:
        self._watch = watch
        self.recording = recording
        self.choice = choice
        self.kinds = kinds
        self.group = group
        self.fresh = True  # before its first token
        self.tokens = 0
        self.preemptions = 0
        self._queued = self._scheduled = self._first = 0.0  # the engine's clock, s; 0 before each
        self._steps = self._occupancy = self.mixed = 0  # the watch's sums at its begin
        self.last: tuple[int, int, int] | None = None  # and at its end

    def began(self, timestamp: float, size: int, mixed: int) -> None:
        """Note the step of the first token, one of `size` outputs."""
        self.fresh = False
        self._first = timestamp
        watch = self._watch
        self._steps, self._occupancy, self.mixed = watch.steps - 1, watch.occupancy - size, mixed

    def events(self, events: Iterable[Any]) -> None:
        """Note the scheduler's events of the request since its last output."""
        for event in events:
            if event.type == QUEUED:
                self._queued = event.timestamp
            elif event.type == SCHEDULED and not self._scheduled:
                self._scheduled = event.timestamp
            elif event.type == PREEMPTED:
                self.preemptions += 1

    def close(self) -> None:
        """Note that the engine has finished it: later steps do not count."""
        watch = self._watch
        self.last = (watch.steps, watch.occupancy, watch.mixed)

    def facts(self) -> dict[str, AttributeValue]:
        """Return its facts for the request span."""
        facts: dict[str, AttributeValue] = {semconv.ENGINE_PREEMPTIONS: self.preemptions}
        if self._queued and self._scheduled:
            facts[semconv.GEN_AI_LATENCY_QUEUE] = max(self._scheduled - self._queued, 0.0)
        if self._scheduled and self._first:
            facts[semconv.GEN_AI_LATENCY_PREFILL] = max(self._first - self._scheduled, 0.0)
        if not self.fresh:
            watch = self._watch
            steps, occupancy, mixed = self.last or (watch.steps, watch.occupancy, watch.mixed)
            facts[semconv.ENGINE_STEPS] = steps - self._steps
            facts[semconv.ENGINE_FIRST_STEP] = self._steps + 1
            facts[semconv.ENGINE_MIXED_STEPS] = mixed - self.mixed
            if steps > self._steps:
                facts[semconv.ENGINE_BATCH_MEAN] = round((occupancy - self._occupancy) / (steps - self._steps), 2)
        return facts


class Watch:
    """The followed requests of one OutputProcessor, by the engine's request id, and sums over its steps.

    `failed` once something of ours went wrong: then nothing is followed any more. Steps are counted from the present
    in unix us, so that after a restart their numbers are higher than those before it: a step takes longer than 1 us.
    """

    __slots__ = (
        "_clock_ns",
        "_decoded",
        "_mixed_now",
        "_prefilled",
        "_timestamp",
        "failed",
        "groups",
        "mixed",
        "occupancy",
        "steps",
        "streams",
    )

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self._clock_ns = clock_ns
        self.streams: dict[str, Stream] = {}
        self.groups: dict[str, Group] = {}
        self.failed = False
        self.steps = wall_ns() // 1000
        self.occupancy = 0
        self.mixed = 0
        self._timestamp: float | None = None
        self._prefilled = self._decoded = self._mixed_now = False

    def step(self, outputs: list[Any], timestamp: float | None) -> None:
        """Apply a step of the engine, which may come in several slices of one timestamp (s)."""
        now_ns = self._clock_ns()
        at_ns = now_ns if timestamp is None else int(timestamp * 1e9)
        if not 0 <= now_ns - at_ns <= FOREIGN_NS:
            at_ns = now_ns
        size = len(outputs)
        if timestamp is None or timestamp != self._timestamp:
            self._timestamp = timestamp
            self.steps += 1
            self._prefilled = self._decoded = self._mixed_now = False
        self.occupancy += size
        mixed = self.mixed
        streams = self.streams
        prefills = 0
        for output in outputs:
            if output.prefill_stats is not None:
                prefills += 1
            stream = streams.get(output.request_id)
            if stream is None:
                continue
            count = len(output.new_token_ids)
            if output.events is not None:
                stream.events(output.events)
            if stream.fresh:
                stream.began(at_ns / 1e9 if timestamp is None else timestamp, size, mixed)
            stream.tokens += count
            kind = stream.kinds.get(stream.choice, CONTENT)
            if count == 1 and kind == CONTENT and not stream.choice:
                stream.recording.append(at_ns)
            elif count:
                stream.recording.append((at_ns, ((stream.choice, kind, count, False),)))
            if output.finish_reason is not None:
                self.ended(output.request_id, at_ns, int(output.finish_reason))
        self._prefilled |= prefills > 0
        self._decoded |= prefills < size
        if self._prefilled and self._decoded and not self._mixed_now:
            self._mixed_now = True
            self.mixed += 1

    def ended(self, request_id: str, at_ns: int, reason: int | None) -> None:
        """Note that a request ended; an unknown one changes nothing."""
        stream = self.streams.pop(request_id, None)
        if stream is None:
            return
        stream.close()
        if stream.group is not None:
            stream.group.ended(stream, at_ns, reason)

    def aborted(self, request_ids: Iterable[str]) -> None:
        """Note that requests were removed from the engine: their clients no longer want them."""
        for request_id in request_ids:
            self.ended(request_id, self._clock_ns(), ABORTED)

    def died(self, error: BaseException) -> None:
        """Note that the engine failed under all of its requests."""
        streams, self.streams, self.groups = self.streams, {}, {}
        for stream in streams.values():
            stream.close()
            if stream.group is not None:
                stream.recording.attributes(stream.facts())
                stream.recording.failed(error)

    def broken(self, bug: BaseException) -> None:
        """Follow nothing any more: a failure of ours is one warning, never the engine's."""
        streams, self.streams, self.groups = self.streams, {}, {}
        self.failed = True
        runtime.warn(bug)
        for stream in streams.values():
            stream.recording.give_up()
