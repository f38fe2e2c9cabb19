"""The recorder on a virtual clock that a test moves: what it sends, and what the collector and an audit make of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.live import Live

import otel_llm
from otel_llm.audit.input.stream_batch import to_batch
from otel_llm.audit.kernel.judge_batch import judge_batch
from otel_llm.export.records import Record
from otel_llm.export.wire import export_request
from otel_llm.formats.assemble.assembler import Assembler
from otel_llm.formats.otlp.export_request import decode
from otel_llm.formats.rows import Row
from otel_llm.instrumentation.process import runtime
from otel_llm.instrumentation.process.flusher import Flusher
from otel_llm.instrumentation.process.runtime import Runtime
from otel_llm.instrumentation.process.wall_anchor import WallAnchor
from otel_llm.rules.files.load import load_rules
from otel_llm.rules.files.slo_file import load_slo

OFFSET_NS = 1_790_000_000_000_000_000
"""Added to the virtual clock it makes unix ns."""
FLUSH_NS = 250_000_000
SENT_NS = 1_000_000
"""How long an export is under way."""


class _NoThread(Flusher):
    def __init__(self, clock_ns: Callable[[], int]) -> None:
        super().__init__(clock_ns, start=lambda run: None)

    def complete(self, timeout_s: float, *, exiting: bool = False) -> bool:
        self.step(self._clock_ns(), complete=True, exiting=exiting)
        return True

    def stop(self, timeout_s: float) -> None:
        """There is no thread."""


class VirtualRuntime(Runtime):
    """A runtime whose time stands still until `at` moves it; `sent` has each record with the instant of its export."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000_000_000
        self.sent: list[tuple[int, Record]] = []
        super().__init__(InMemorySpanExporter(), metrics="off", clock_ns=lambda: self.now_ns)
        self.flusher = _NoThread(self.clock_ns)
        self.anchor = WallAnchor(lambda: self.now_ns + OFFSET_NS)

    def at(self, now_ns: int) -> None:
        """Let time pass; the flusher looks when it would."""
        while now_ns - self.now_ns > FLUSH_NS:
            self.now_ns += FLUSH_NS
            self.flusher.step(self.now_ns)
        self.now_ns = max(self.now_ns, now_ns)

    def send(self, records: Sequence[Record], *, urgent: bool = False) -> None:
        self.sent += [(self.now_ns + SENT_NS, record) for record in records]

    def deliveries(self) -> list[tuple[int, ExportTraceServiceRequest]]:
        """Return the exports with their receipt times, unix ns."""
        return [
            (at_ns + OFFSET_NS, ExportTraceServiceRequest.FromString(export_request([record])))
            for at_ns, record in self.sent
        ]

    def judged(self) -> Live:
        """Return what a collector with the shipped classes and rules makes of the exports."""
        return Live(load_slo(), load_rules()).run(self.deliveries())

    def audited(self) -> list[Row]:
        """Return the rows of an audit of the exports."""
        assembler = Assembler()
        for _, message in self.deliveries():
            assembler.add(decode(message))
        rows: list[dict[str, Any]] = judge_batch(to_batch(assembler.finish()), load_slo()).to_pylist()
        return rows


@contextmanager
def virtual_runtime() -> Iterator[VirtualRuntime]:
    """Instrument all stacks with a virtual runtime."""
    found = VirtualRuntime()
    with mock.patch.object(runtime, "configured", return_value=found):
        otel_llm.instrument()
        try:
            yield found
        finally:
            otel_llm.uninstrument()
