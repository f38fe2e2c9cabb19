"""Build the facts of a request at its commit, under the names that the application chose for the wire."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from opentelemetry import baggage

from otel_llm import semconv
from otel_llm.instrumentation.core.committed_request import Request
from otel_llm.instrumentation.request.propagation import admitted
from otel_llm.instrumentation.request.wishes import NO_WISHES, Wishes
from otel_llm.instrumentation.segments.statements import text_of
from otel_llm.semconv import MAX_CHOICES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.context import Context

    from otel_llm.export.records import AttributeValue
    from otel_llm.instrumentation.process.runtime import Runtime

INSTANCE_VARIABLE: Final = "OTEL_LLM_INSTANCE"
"""This replica's name, for `otel_llm.instance`."""
STREAMED: Final[Mapping[str, AttributeValue]] = {semconv.GEN_AI_REQUEST_STREAM: True}
"""An attribute of the request span of a request for a stream."""
_DEFAULT_PORTS: Final = {"https": 443, "http": 80}


def request(
    runtime: Runtime,
    context: Context,
    *,
    operation: str,
    model: str | None,
    gen_ai: Mapping[str, AttributeValue | None],
    ours: Mapping[str, AttributeValue | None],
    span_only: Mapping[str, AttributeValue] | None = None,
    slo_class: str | None = None,
    commit_ns: int | None = None,
    offset_ns: int | None = None,
    wishes: Wishes = NO_WISHES,
    says_complete: bool = False,
    server: bool = False,
    stack: str = "other",
) -> Request:
    """Return a request committed now, or at `commit_ns` (monotonic); None values are left out.

    Its SLO class is the one stated for it, else the baggage's `otel_llm.slo.class` if it is known, else the runtime's.
    `wishes`: of more choices than the API allows, one is recorded. `server`: it is measured where it is served, and
    `context` is that of its headers. `offset_ns`: what makes unix ns of the runtime's monotonic ns; by default the
    anchor of the process.
    """
    monotonic_ns = runtime.clock_ns()
    model = text_of(model)
    stated = slo_class or admitted(runtime, baggage.get_baggage(semconv.SLO_CLASS, context)) or runtime.slo_class
    identity = {
        semconv.GEN_AI_OPERATION_NAME: operation,
        semconv.GEN_AI_REQUEST_MODEL: model,
        semconv.GEN_AI_REQUEST_CHOICE_COUNT: wishes.choices if wishes.choices > 1 else None,
        semconv.GEN_AI_CONVERSATION_ID: wishes.conversation,
        semconv.GEN_AI_REQUEST_REASONING_LEVEL: wishes.reasoning_level,
        **gen_ai,
    }
    private = {
        semconv.SLO_CLASS: str(stated) if stated else None,
        semconv.MEASURED_AT: "server" if server else None,
        **ours,
    }
    return Request(
        name=operation if model is None else f"{operation} {model}",
        commit_ns=monotonic_ns if commit_ns is None else min(commit_ns, monotonic_ns),
        offset_ns=runtime.anchor.offset_ns(runtime.clock_ns) if offset_ns is None else offset_ns,
        choices=wishes.choices if wishes.choices <= MAX_CHOICES else 1,
        ours={key: value for key, value in private.items() if value is not None},
        gen_ai=runtime.named({key: value for key, value in identity.items() if value is not None}),
        span_only=span_only or {},
        says_complete=says_complete,
        server=server,
        stack=stack,
    )


def by_relay(
    runtime: Runtime,
    context: Context,
    *,
    operation: str,
    model: str | None,
    choices: int,
    commit_ns: int,
    offset_ns: int,
) -> Request:
    """Return a request for a streamed reply that passes through a relay; `context` is that of its headers."""
    committed = request(
        runtime,
        context,
        operation=operation,
        model=model,
        gen_ai={},
        ours={semconv.MEASURED_AT: "relay"},
        span_only=STREAMED,
        commit_ns=commit_ns,
        offset_ns=offset_ns,
        wishes=Wishes(choices),
        server=True,
        stack="relay",
    )
    return replace(committed, gpus=False)


def by_client(
    runtime: Runtime,
    context: Context,
    *,
    operation: str,
    model: object,
    provider: str | None,
    scheme: str,
    host: str | None,
    port: int | None,
    wishes: Wishes = NO_WISHES,
    commit_ns: int | None = None,
    says_complete: bool = True,
    stack: str = "other",
) -> Request:
    """Return a client's request for a streamed reply; `model` is recorded if it is text; `port` None: the scheme's."""
    return request(
        runtime,
        context,
        operation=operation,
        model=model if isinstance(model, str) else None,
        gen_ai={
            semconv.GEN_AI_PROVIDER_NAME: provider,
            semconv.SERVER_ADDRESS: host or None,
            semconv.SERVER_PORT: port or _DEFAULT_PORTS.get(scheme),
        },
        ours={semconv.MEASURED_AT: "client"},
        span_only=STREAMED,
        commit_ns=commit_ns,
        wishes=wishes,
        says_complete=says_complete,
        stack=stack,
    )
