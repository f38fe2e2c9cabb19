"""A sink that keeps what an evaluator gives it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from otel_llm.evaluate.streams.final_verdict import EndedStream
from otel_llm.evaluate.streams.stream_in_flight import StreamInFlight
from otel_llm.evaluate.usage import Metered
from otel_llm.formats.rows import Row
from otel_llm.rules.decisions.decision_records import Decision
from otel_llm.slo.stated_total import StatedReply
from otel_llm.slo.verdict import Verdict


@dataclass(kw_only=True)
class KeepingSink:
    """Keep rows, verdicts, decisions and charges in lists."""

    rows: list[Row] = field(default_factory=list)
    verdicts: list[Verdict | None] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    metered: list[Metered] = field(default_factory=list)

    def charged(self, metered: Metered) -> None:
        self.metered.append(metered)

    def streams_judged(self, ended: Sequence[EndedStream[StreamInFlight]]) -> None:
        for one in ended:
            self.rows.append(one.row())
            self.verdicts.append(one.verdict)

    def reply_stated(self, reply: StatedReply) -> None: ...

    def foreign_judged(self, row: Row) -> None:
        self.rows.append(row)

    def decided(self, decisions: list[Decision]) -> None:
        self.decisions.extend(decisions)
