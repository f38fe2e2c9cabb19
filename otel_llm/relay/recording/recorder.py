"""The recorder of owned streams: as spans and segments for their receiver, and as events for the relay's rules.

Both get each token under one instant, and both count unix time from one anchor, so rules see what an audit of the
segments finds later. If the wall clock steps, requests that begin behind the step are sent under the new time.
Everything here runs in the event loop; segments are cut and sent by threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from otel_llm.instrumentation.core.recording import Recording
from otel_llm.instrumentation.process import runtime
from otel_llm.instrumentation.process.wall_anchor import STEP_NS
from otel_llm.instrumentation.request import propagation, request_builder
from otel_llm.instrumentation.segments.chunks import choices_of
from otel_llm.instrumentation.segments.statements import MAX_TEXT
from otel_llm.relay.recording.environment import Environment
from otel_llm.relay.recording.recorded import Recorded
from otel_llm.relay.recording.reply_facts import ReplyFacts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from opentelemetry.sdk.trace import ReadableSpan

    from otel_llm.evaluate.own_streams.first_hand import FirstHand
    from otel_llm.formats.records import RequestKey
    from otel_llm.instrumentation.process.runtime import Runtime
    from otel_llm.relay.recording.environment import Later
    from otel_llm.shared.clock import Clock


class Owned(Protocol):
    """The recorded facts of an owned request at its commit."""

    @property
    def operation(self) -> str:
        """Return `gen_ai.operation.name`."""

    @property
    def model(self) -> str | None:
        """Return the requested model, None if the request names none."""

    @property
    def choices(self) -> int:
        """Return the number of requested choices."""


class Recorder:
    """The recordings in progress; `requests` are those that have not ended, by trace id and span id.

    `running` sends spans and segments; `first_hand` follows the same streams for the rules, and `rearm` is called when
    something may fall due there earlier than before. `clock` turns the runtime's monotonic ns into unix ns. `later`
    schedules a call in so many seconds, as `loop.call_later` does.
    """

    def __init__(
        self, running: Runtime, first_hand: FirstHand, clock: Clock, later: Later, rearm: Callable[[], None]
    ) -> None:
        self.requests: dict[RequestKey, Recorded] = {}
        self.children: dict[RequestKey, list[RequestKey]] = {}
        """The requests that have not ended, by their client's span."""
        self.environment = Environment(running.clock_ns, clock.unix_ns(0), first_hand, rearm, later)
        self._running = running

    def begin(
        self,
        headers: Iterable[tuple[bytes, bytes]],
        owned: Owned,
        commit_ns: int,
        prompt_known: Callable[[int], None] | None = None,
    ) -> Recorded:
        """Begin to record a request that was committed at `commit_ns` (monotonic ns).

        `headers` are the client's, unchanged: its span is the parent of the request's, its SLO class is taken over.
        `prompt_known` is called with the tokens of the prompt at their first statement, if there is one.
        """
        headers = list(headers)
        context = propagation.extract(headers, self._running)
        request = request_builder.by_relay(
            self._running,
            context,
            operation=owned.operation,
            model=None if owned.model is None else owned.model[:MAX_TEXT],
            choices=choices_of(owned.choices),
            commit_ns=commit_ns,
            offset_ns=self._offset_ns(),
        )
        facts = ReplyFacts()
        recording = Recording(self._running, request, facts)
        recording.begin(context)
        recorded = Recorded(self.environment, self._forget, request, recording, facts, context, headers, prompt_known)
        self.requests[recorded.key] = recorded
        if recorded.parent is not None:
            self.children.setdefault(recorded.parent, []).append(recorded.key)
        return recorded

    def find(self, span: RequestKey) -> Sequence[RequestKey]:
        """Return the open requests of a span: its own, or those of a client's span."""
        return (span,) if span in self.requests else tuple(self.children.get(span, ()))

    def _offset_ns(self) -> int:
        """Return what makes unix ns for the receiver of a request that begins now.

        It is that of the rules, whose time never steps, until the wall clock has stepped.
        """
        kept_ns = self.environment.offset_ns
        found_ns = self._running.anchor.offset_ns(self._running.clock_ns)
        return found_ns if abs(found_ns - kept_ns) > STEP_NS else kept_ns

    def _forget(self, recorded: Recorded) -> None:
        """Drop a request that has ended."""
        del self.requests[recorded.key]
        if recorded.parent is not None:
            children = self.children[recorded.parent]
            children.remove(recorded.key)
            if not children:
                del self.children[recorded.parent]


class _Nowhere(SpanExporter):
    """An exporter that drops everything."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:  # noqa: ARG002
        return SpanExportResult.SUCCESS


def relay_runtime(exporter: SpanExporter | None = None) -> Runtime:
    """Return a runtime of the relay's own, which hooks nothing; the caller stops it.

    It sends as `OTEL_EXPORTER_OTLP_*` and `OTEL_LLM_ENDPOINTS` say, or through `exporter`; nothing if the
    environment switches OpenTelemetry off.
    """
    if exporter is None and runtime.disabled():
        exporter = _Nowhere()
    return runtime.configured(exporter, metrics="off")
