"""The histograms of the GenAI conventions, and two of ours, through the application's MeterProvider.

One value costs 9 us in the SDK (5 attributes, CPython 3.11), more than all other work for a chunk: so values are queued
and recorded by the flusher's thread, a few for each request, and for each chunk only if the application asks for it.
The conventions' lowest boundary of 10 ms is too coarse for a decoder that needs 2 to 10 ms a token; ours have theirs
and finer ones.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from opentelemetry import context as otel_context
from opentelemetry import metrics, trace
from opentelemetry.trace import NonRecordingSpan

from otel_llm import semconv
from otel_llm.export.records import version
from otel_llm.instrumentation.core.renamed_attributes import renamed_metric
from otel_llm.instrumentation.core.request_span import AttachedSpan
from otel_llm.instrumentation.segments.outcomes import COMPLETED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opentelemetry.metrics import Histogram, MeterProvider
    from opentelemetry.trace import SpanContext

    from otel_llm.export.records import AttributeValue
    from otel_llm.instrumentation.core.committed_request import Request
    from otel_llm.instrumentation.core.renamed_attributes import Names
    from otel_llm.instrumentation.core.request_span import RequestSpan
    from otel_llm.instrumentation.segments.choices import Choices

WAITING: Final = 20_000
"""The most requests whose values wait for the flusher; beyond it the oldest are dropped."""

_FINE: Final = (0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.008, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08)
_DURATION: Final = tuple(0.01 * 2**power for power in range(14))
_FIRST: Final = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_EACH: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_OVERLOADED: Final = (20.0, 40.0, 80.0)

INSTRUMENTS: Final[Mapping[str, tuple[str, Sequence[float]]]] = {
    semconv.CLIENT_DURATION: ("Duration of a streamed request.", _DURATION),
    semconv.CLIENT_FIRST_CHUNK: ("Time from the request to the first chunk of its reply, of any kind.", _DURATION),
    semconv.CLIENT_OUTPUT_CHUNK: ("Time between two chunks.", sorted({*_FINE, *_DURATION})),
    semconv.SERVER_DURATION: ("Duration of a streamed request in the server.", _DURATION),
    semconv.SERVER_FIRST_TOKEN: ("Time to the first token of a completed reply.", _FIRST),
    semconv.SERVER_OUTPUT_TOKEN: (
        "Mean time of a token after the first one, of a completed reply.",
        sorted({*_FINE, *_EACH}),
    ),
    semconv.FIRST_TOKEN: ("Time from the request to its first token of any kind.", (*_FIRST, *_OVERLOADED)),
    semconv.FIRST_VISIBLE: ("Time from the request to its first token of content.", (*_FIRST, *_OVERLOADED)),
}
"""By name: description, and boundaries of its buckets; all in seconds."""

_IDENTITY: Final = frozenset(
    {
        semconv.GEN_AI_OPERATION_NAME,
        semconv.GEN_AI_PROVIDER_NAME,
        semconv.GEN_AI_SYSTEM,
        semconv.GEN_AI_REQUEST_MODEL,
        semconv.GEN_AI_RESPONSE_MODEL,
        semconv.SERVER_ADDRESS,
        semconv.SERVER_PORT,
    }
)
"""The attributes of the conventions' histograms; any other (token counts) would make a series of each request."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Values of one request, by the histogram's name, seconds; `context` is its request span, for exemplars."""

    values: Sequence[tuple[str, float, Mapping[str, AttributeValue]]]
    context: SpanContext


class Metrics:
    """The queue of values; any thread puts them, and `step` records them."""

    def __init__(self, provider: MeterProvider | None, names: Names, *, chunks: bool) -> None:
        self._provider = provider
        self._names = names
        self._chunks = chunks
        self._waiting: deque[Measured] = deque(maxlen=WAITING)
        self._made: tuple[object, dict[str, list[Histogram]]] | None = None

    def provider(self) -> MeterProvider:
        """Return the application's MeterProvider, as it is now: it may be set later than ours."""
        return self._provider or metrics.get_meter_provider()

    @property
    def wanted(self) -> bool:
        """Return whether there is a provider that records values."""
        provider = self.provider()
        # The stand-in for a later provider has no public name; mistaking it for one would only cost its no-ops.
        return not isinstance(provider, metrics.NoOpMeterProvider) and type(provider).__name__ != "_ProxyMeterProvider"

    @property
    def chunks_wanted(self) -> bool:
        """Return whether a value for each chunk is wanted."""
        return self._chunks and self.wanted

    @property
    def waiting(self) -> int:
        """Return how many requests' values wait for the next step."""
        return len(self._waiting)

    def put(self, measured: Measured) -> None:
        """Keep values until the next step."""
        self._waiting.append(measured)

    def step(self) -> None:
        """Record the queued values."""
        while self._waiting:
            try:
                measured = self._waiting.popleft()
            except IndexError:  # another thread took it
                return
            context = trace.set_span_in_context(NonRecordingSpan(measured.context), otel_context.Context())
            for name, value, attributes in measured.values:
                for histogram in self._histograms(name):
                    histogram.record(value, attributes, context)

    def _histograms(self, name: str) -> list[Histogram]:
        provider = self.provider()
        if self._made is None or self._made[0] is not provider:
            self._made = (provider, {})
        made = self._made[1]
        if name not in made:
            meter = provider.get_meter(semconv.SCOPE_NAME, version())
            described, boundaries = INSTRUMENTS[name]
            made[name] = [
                meter.create_histogram(each, "s", described, explicit_bucket_boundaries_advisory=boundaries)
                for each in renamed_metric(name, self._names)
            ]
        return made[name]

    def after_fork(self) -> None:
        """Drop the parent's values: it records them itself."""
        self._waiting = deque(maxlen=WAITING)


def of_request(
    request: Request,
    choices: Choices | None,
    context: SpanContext,
    end_ns: int,
    outcome: str,
    reported: Mapping[str, AttributeValue],
    error: str | None,
    *,
    attached: bool,
) -> Measured:
    """Return the values of a request that ended at `end_ns` (unix ns); `reported` are its reply's own statements.

    For a request whose inference span belongs to another instrumentation only our own: it records the conventions'
    itself.
    """
    identity = {key: value for key, value in {**request.gen_ai, **reported}.items() if key in _IDENTITY}
    commit_ns = request.commit_ns + request.offset_ns
    values: list[tuple[str, float, Mapping[str, AttributeValue]]] = []

    def add(name: str, until_ns: int | None, attributes: Mapping[str, AttributeValue] = identity) -> None:
        if until_ns is not None:
            values.append((name, max(until_ns - commit_ns, 0) / 1e9, attributes))

    failed = identity if error is None else {**identity, semconv.ERROR_TYPE: error}
    if not attached and not request.server:
        add(semconv.CLIENT_DURATION, end_ns, failed)
        add(semconv.CLIENT_FIRST_CHUNK, None if choices is None else choices.first_chunk_ns)
    elif not attached:
        add(semconv.SERVER_DURATION, end_ns, failed)
        if choices is not None and outcome == COMPLETED:
            add(semconv.SERVER_FIRST_TOKEN, choices.first_token_ns)
            if choices.count == 1 and choices.tokens > 1 and choices.first_token_ns is not None:
                mean_s = max(end_ns - choices.first_token_ns, 0) / 1e9 / (choices.tokens - 1)
                values.append((semconv.SERVER_OUTPUT_TOKEN, mean_s, {**identity, semconv.TOKEN_BASIS: choices.basis}))
    if choices is not None:
        ours = {**identity, semconv.MEASURED_AT: request.ours.get(semconv.MEASURED_AT, "client")}
        if (slo_class := request.ours.get(semconv.SLO_CLASS)) is not None:
            ours[semconv.SLO_CLASS] = slo_class
        add(semconv.FIRST_TOKEN, choices.first_token_ns, ours)
        add(semconv.FIRST_VISIBLE, choices.first_visible_ns, ours)
    return Measured(values, context)


def wants_chunks(metrics: Metrics | None, span: RequestSpan, request: Request) -> bool:
    """Return whether the times between a request's chunks are wanted.

    The histogram is the client's; for a request with another instrumentation's span that one records it.
    """
    return metrics is not None and metrics.chunks_wanted and not (request.server or isinstance(span, AttachedSpan))


def of_chunks(
    request: Request, gaps_ns: Sequence[int], context: SpanContext, reported: Mapping[str, AttributeValue]
) -> Measured:
    """Return the times between the received chunks."""
    identity = {key: value for key, value in {**request.gen_ai, **reported}.items() if key in _IDENTITY}
    return Measured([(semconv.CLIENT_OUTPUT_CHUNK, gap_ns / 1e9, identity) for gap_ns in gaps_ns], context)
