"""Write the requests of a run into a journal, as the collector writes those of an application.

A request is one record, in the segments of the application's own recorder. The last twelve digits of its trace id are
its number.
"""

from __future__ import annotations

import random
import secrets
from itertools import groupby
from typing import TYPE_CHECKING, Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import SpanContext, TraceFlags

from otel_llm import semconv
from otel_llm.bench.client.target import OPERATIONS
from otel_llm.export.records import Origin
from otel_llm.export.wire import export_request
from otel_llm.instrumentation.parse.wires import provider_of
from otel_llm.instrumentation.segments.choices import Choices
from otel_llm.instrumentation.segments.chunks import FRAMING
from otel_llm.instrumentation.segments.statements import Statements
from otel_llm.instrumentation.segments.token_estimate import Estimates
from otel_llm.journal.journal import Journal

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self

    from otel_llm.bench.client.observed_request import ObservedRequest
    from otel_llm.bench.client.target import Target
    from otel_llm.export.records import AttributeValue
    from otel_llm.instrumentation.segments.choices import Counted
    from otel_llm.instrumentation.segments.chunks import Reading
    from otel_llm.shared.clock import Clock

SERVICE: Final = "otel-llm-bench"


class RequestRecords:
    """The records of a run's requests.

    Args:
        target: the server.
        slo_class: that requests declare, None for none.
        clock: turns monotonic ns into unix ns.
    """

    def __init__(self, target: Target, slo_class: str | None, clock: Clock) -> None:
        self._offset_ns = clock.unix_ns(0)
        self._run_id = secrets.randbits(64) | 1
        self._getrandbits = random.Random(self._run_id).getrandbits  # noqa: S311  ids of spans
        self._resource = Resource({semconv.SERVICE_NAME: SERVICE, semconv.SERVICE_INSTANCE_ID: f"{self._run_id:016x}"})
        self._identity: dict[str, AttributeValue] = {
            semconv.GEN_AI_OPERATION_NAME: OPERATIONS[target.api],
            semconv.GEN_AI_REQUEST_MODEL: target.model,
            semconv.GEN_AI_PROVIDER_NAME: provider_of("openai", target.host, target.path),
            semconv.SERVER_ADDRESS: target.host,
            semconv.SERVER_PORT: target.port,
            semconv.MEASURED_AT: "client",
        }
        if slo_class is not None:
            self._identity[semconv.SLO_CLASS] = slo_class

    def end_unix_ns(self, request: ObservedRequest) -> int:
        """Return the end of a request that has ended, unix ns."""
        assert request.end_ns is not None  # noqa: S101
        return request.end_ns + self._offset_ns

    def record(self, request: ObservedRequest) -> bytes:
        """Return a request that has ended, as an `ExportTraceServiceRequest`."""
        assert request.outcome is not None  # noqa: S101
        trace_id = self._run_id << 64 | request.number + 1
        context = SpanContext(trace_id, request.number + 1, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))
        reader = _Known(request)
        commit_ns = request.intended_ns + self._offset_ns
        origin = Origin(context, self._resource)
        choices = Choices(1, commit_ns, self._offset_ns, origin, self._getrandbits, self._identity, reader, Estimates())
        segments = choices.commit()
        segments += choices.take(items_of(request))
        segments += choices.last(
            self.end_unix_ns(request), request.outcome, reader.reported.segment_attributes(alone=True)
        )
        return export_request(segments)


class RunJournal:
    """The journal of a run in a folder, in order of the requests' ends; a context manager.

    Raises:
        StartError: the folder cannot be used.
    """

    def __init__(self, folder: Path, records: RequestRecords) -> None:
        self._records = records
        self._journal = Journal(folder, compress=False)

    def __enter__(self) -> Self:
        self._journal.open()
        return self

    def __exit__(self, *_: object) -> None:
        self._journal.close()

    def write(self, request: ObservedRequest) -> None:
        """Write a request that has ended. Raises JournalError if that cannot be done (a full disk)."""
        self._journal.append(self._records.record(request), self._records.end_unix_ns(request))


class _Known:
    """The reader of a reply that was read already."""

    plain = False

    def __init__(self, request: ObservedRequest) -> None:
        self._request = request
        self.reported = Statements()
        self.reported.input_tokens = request.prompt_tokens
        self.reported.output_tokens = request.stated_tokens
        self.reported.reasoning_tokens = request.stated_reasoning

    def plain_size(self, _chunk: object, /) -> int:
        """Return 0: no chunk is read here."""
        return 0

    def __call__(self, _chunk: object, /) -> Reading:
        """Return an empty reading."""
        return FRAMING

    def basis(self, choice: int) -> str:  # noqa: ARG002
        """Return the basis of the request's counts."""
        return self._request.token_basis or "chunk"


def items_of(request: ObservedRequest) -> list[Counted]:
    """Return the tokens of a request as its recording would have buffered them: chunks of one time and kind."""
    items: list[Counted] = []
    for (at_ns, kind), tokens in groupby(zip(request.times_ns, request.kinds, strict=True)):
        count = sum(1 for _ in tokens)
        items.append(at_ns if count == 1 and kind == 0 else (at_ns, ((0, kind, count, False),)))
    return items
