"""The live evaluator on a virtual clock: deliveries in, rows, windows and decisions out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from support.evaluate.sinks import KeepingSink

from otel_llm.evaluate.evaluator import Evaluator
from otel_llm.evaluate.timers import Timeouts
from otel_llm.evaluate.windowing import Windowing
from otel_llm.formats.otlp.export_request import decode, read
from otel_llm.rules.engine.rule_engine import RuleEngine
from otel_llm.rules.files.ruleset import RuleSet
from otel_llm.rules.files.slo_file import load_slo
from otel_llm.slo.classes import SloClasses

Delivery = tuple[int, ExportTraceServiceRequest]
"""When the collector received it (unix ns), and what."""


@dataclass
class Live(KeepingSink):
    """An evaluator and all that came out of it."""

    classes: SloClasses = field(default_factory=load_slo)
    rules: RuleSet = field(default_factory=lambda: RuleSet(()))
    window_ns: int = 10_000_000_000
    timeouts: Timeouts = field(default_factory=Timeouts)
    windows: list[dict[str, Any]] = field(default_factory=list)
    columns: bool = True
    """Whether plain segments come as columns, as from the receivers."""

    def __post_init__(self) -> None:
        self.windowing = Windowing(self.window_ns, self.timeouts.lateness_ns, self.windows.append)
        self.engine = RuleEngine(self.rules)
        self.evaluator = Evaluator(self.classes, self.engine, self.windowing, self, self.timeouts)

    def run(self, deliveries: Iterable[Delivery], until_ns: int | None = None) -> Live:
        """Apply deliveries at their instants, in order, then let time pass."""
        last = 0
        for last, message in sorted(deliveries, key=lambda one: one[0]):
            batch = read(message.SerializeToString()) if self.columns else decode(message)
            batch.received(last)
            self.evaluator.apply(batch, last)
            self.metered += self.evaluator.meter.charge_in_flight()
        timeouts = self.timeouts
        self.evaluator.advance(last + timeouts.lost_after_ns + timeouts.lateness_ns + 2 * self.window_ns)
        if until_ns is not None:
            self.evaluator.advance(until_ns)
        return self
