"""What is switched on: our recorder, or one of the peers, each as its README says, all sending to the same place."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import MeterProvider

OURS = "otel-llm"
HTTP_SINK = "OVERHEAD_HTTP_SINK"
"""Where Langfuse, which speaks OTLP over HTTP only, finds the sink."""


@dataclass(frozen=True)
class Exits:
    """Where telemetry goes: an exporter of spans, and a provider for metrics where these are wanted."""

    spans: SpanExporter
    meters: MeterProvider | None = None

    def tracers(self) -> TracerProvider:
        provider = TracerProvider()
        provider.add_span_processor(BatchSpanProcessor(self.spans))
        return provider


Flush = Callable[[], object]


def _ours(exits: Exits | None) -> Flush:
    import otel_llm

    settings: dict[str, Any] = {}
    if exits is not None:
        settings = {"exporter": exits.spans, "tracer_provider": exits.tracers()}
        if exits.meters is not None and "meter_provider" in otel_llm.instrument.__annotations__:
            settings["meter_provider"] = exits.meters
    otel_llm.instrument(**settings)
    theirs = settings.get("tracer_provider")
    return lambda: (otel_llm.flush(30), theirs and theirs.force_flush())


def _standard(instrumentor: Any, exits: Exits) -> Flush:
    provider = exits.tracers()
    meters = {} if exits.meters is None else {"meter_provider": exits.meters}
    instrumentor.instrument(tracer_provider=provider, **meters)
    return provider.force_flush


def _traceloop(exits: Exits) -> Flush:
    from opentelemetry.instrumentation.openai import OpenAIInstrumentor

    return _standard(OpenAIInstrumentor(), exits)


def _openinference(exits: Exits) -> Flush:
    from openinference.instrumentation.openai import OpenAIInstrumentor

    return _standard(OpenAIInstrumentor(), exits)


def _genai_openai(exits: Exits) -> Flush:
    from opentelemetry.instrumentation.genai.openai import OpenAIInstrumentor

    return _standard(OpenAIInstrumentor(), exits)


def _langfuse(exits: Exits) -> Flush:
    import langfuse
    import langfuse.openai  # hooks the SDK

    # Its own exporter over HTTP in the measurement of CPU, a given one if it is asked what it recorded.
    exporter = {} if HTTP_SINK in os.environ else {"span_exporter": exits.spans}
    client: Any = langfuse.Langfuse(
        public_key="pk",
        secret_key="sk",
        base_url=os.environ.get(HTTP_SINK, "http://127.0.0.1:9"),
        tracer_provider=TracerProvider(),
        **exporter,
    )
    flush: Flush = client.flush
    return flush


def _logfire(exits: Exits) -> Flush:
    import logfire

    logfire.configure(
        send_to_logfire=False,
        console=False,
        metrics=False,
        inspect_arguments=False,
        additional_span_processors=[BatchSpanProcessor(exits.spans)],
    )
    logfire.instrument_openai()
    flush: Flush = logfire.force_flush
    return flush


PEERS: dict[str, tuple[str, Callable[[Exits], Flush]]] = {
    "Traceloop": ("opentelemetry.instrumentation.openai", _traceloop),
    "OpenInference": ("openinference.instrumentation.openai", _openinference),
    "OTel genai-openai": ("opentelemetry.instrumentation.genai.openai", _genai_openai),
    "Langfuse": ("langfuse", _langfuse),
    "Logfire": ("logfire", _logfire),
}
"""The module that must be there, and what switches the peer on."""


def _hooked_classes() -> list[type]:
    from openai import AsyncOpenAI, AsyncStream, OpenAI, Stream
    from openai._base_client import AsyncAPIClient, BaseClient, SyncAPIClient
    from openai.resources.chat.completions import AsyncCompletions, Completions

    streams: list[Any] = [Stream, AsyncStream]
    clients = [OpenAI, AsyncOpenAI, SyncAPIClient, AsyncAPIClient, BaseClient]
    return [Completions, AsyncCompletions, *clients, *streams]


class Switch:
    """Switches a variant on once, and off for a while.

    Ours is suppressed the standard way. Half of the peers do not look at that, so the SDK's own functions are put back
    for them: `off` is the bare SDK.
    """

    def __init__(self, variant: str, exits: Exits | None) -> None:
        self._theirs: list[tuple[type, str, Any, Any]] = []
        if variant == OURS:
            self.flush = _ours(exits)
            self.off: Callable[[], contextlib.AbstractContextManager[Any]] = suppress_instrumentation
            return
        assert exits is not None
        before = {cls: dict(vars(cls)) for cls in _hooked_classes()}
        self.flush = PEERS[variant][1](exits)
        self._theirs = [
            (cls, name, before[cls].get(name), now)
            for cls in before
            for name, now in vars(cls).items()
            if now is not before[cls].get(name) and not name.startswith("_abc")
        ]
        if not self._theirs:
            raise SystemExit(f"{variant} hooked nothing of what is measured")
        self.off = self._unhooked

    @contextmanager
    def _unhooked(self) -> Iterator[None]:
        for cls, name, bare, _ in self._theirs:
            if bare is None:
                delattr(cls, name)
            else:
                setattr(cls, name, bare)
        try:
            yield
        finally:
            for cls, name, _, hooked in self._theirs:
                setattr(cls, name, hooked)
