"""otel-llm: what the readers of a streaming LLM product feel, live.

Four functions are all that an application needs; everything else is imported when one of them is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from opentelemetry.metrics import MeterProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import TracerProvider

__all__ = ["flush", "instrument", "track", "uninstrument"]

Stream = TypeVar("Stream")


def instrument(
    exporter: SpanExporter | None = None,
    tracer_provider: TracerProvider | None = None,
    slo_class: str | None = None,
    sampling: Literal["always", "parent"] = "always",
    semconv: Literal["1.41", "old", "new", "both"] = "1.41",
    queue_segments: int = 8192,
    *,
    meter_provider: MeterProvider | None = None,
    metrics: Literal["off", "requests", "chunks"] = "requests",
    slo_classes: Collection[str] | None = None,
    propagate: bool = True,
) -> None:
    """Record the token times of every streamed reply of the client libraries that are installed, and send them as OTLP.

    `exporter`: any SpanExporter takes the segments; without one they go where the `OTEL_EXPORTER_OTLP_*` variables
    say (default gRPC to localhost:4317), or to several collectors, which `OTEL_LLM_ENDPOINTS` lists.
    `tracer_provider`: makes the request spans (default: the global one; if there is none they are sent like
    segments). `slo_class`: the class of requests that name none; a request names its own in the baggage, key
    `otel_llm.slo.class`. `sampling`: `always`, or `parent` to send segments of sampled traces only, which leaves live
    rules and windows blind to all others. `semconv`: the version of the GenAI conventions for renamed attributes
    and histograms, see docs/instrumentation.md. `queue_segments`: how many
    segments may wait for slow endpoints; the oldest give way, counted. `meter_provider`: takes the histograms of the
    GenAI conventions (default: the global one; if there is none they are not made); `metrics`: a few for each
    request, `chunks` also one value for each chunk (9 us in the background), or `off`.
    `slo_classes`: the names of all classes; others that come with a request are dropped. `propagate`: whether requests
    carry their trace (`traceparent`) and SLO class (`x-slo-class`) to the server.

    Raises ValueError for a setting outside of its words. A second call warns and changes nothing. Does nothing if
    `OTEL_SDK_DISABLED` is true.
    """
    from otel_llm.instrumentation import setup

    setup.instrument(
        exporter=exporter,
        tracer_provider=tracer_provider,
        slo_class=slo_class,
        sampling=sampling,
        semconv=semconv,
        queue_segments=queue_segments,
        meter_provider=meter_provider,
        metrics=metrics,
        slo_classes=slo_classes,
        propagate=propagate,
    )


def uninstrument() -> None:
    """Send what was recorded and stop; streams that are being read continue unobserved.

    It waits 2 s at most, or as long as `OTEL_LLM_EXIT_TIMEOUT` says.
    """
    from otel_llm.instrumentation import setup

    setup.uninstrument()


def track(
    stream: Stream,
    *,
    model: str | None = None,
    slo_class: str | None = None,
    kind: Callable[[Any], str | None] | None = None,
    count: Callable[[Any], int] | None = None,
    basis: Literal["exact", "estimated"] = "exact",
    operation: str = "chat",
    provider: str | None = None,
    instance: str | None = None,
    measured_at: Literal["client", "relay", "server"] = "client",
    input_tokens: int | None = None,
    exact_resume: bool | None = None,
    commit_ns: int | None = None,
) -> Stream:
    """Return any sync or async iterator of a reply's chunks, recorded; it is read, closed and entered as before.

    The request is committed by this call, or at `commit_ns` (`time.monotonic_ns()` when the user began to wait).
    `kind(chunk)` says what a chunk carries: `content`, `reasoning`, `tool`, or None for no token (default: every chunk
    is content); `count(chunk)` how many tokens (default: estimated from the length of a text, one for a JSON object and
    for anything else), and `basis` whether it knows or estimates. The rest describes the request; `instance` is the
    replica that serves it. Starts recording if `instrument` did not.
    """
    from otel_llm.instrumentation import track as tracking

    recorded: Stream = tracking.track(
        stream,
        model=model,
        slo_class=slo_class,
        kind=kind,
        count=count,
        basis=basis,
        operation=operation,
        provider=provider,
        instance=instance,
        measured_at=measured_at,
        input_tokens=input_tokens,
        exact_resume=exact_resume,
        commit_ns=commit_ns,
    )
    return recorded


def flush(timeout: float = 5.0) -> bool:
    """Send what was recorded so far; return whether all of it was delivered, or given up, within `timeout` seconds."""
    from otel_llm.instrumentation import setup

    return setup.flush(timeout)
