"""A sink for streams at first hand that keeps what it is given."""

from __future__ import annotations

from collections.abc import Callable

from otel_llm.evaluate.own_streams.own_stream import OwnStream
from otel_llm.evaluate.usage import Metered
from otel_llm.formats.rows import Row
from otel_llm.rules.decisions.decision_records import Decision
from otel_llm.slo.stated_total import StatedReply
from otel_llm.slo.verdict import Verdict


class KeepingSink:
    """Keep rows and decisions in lists, which the class that inherits makes."""

    rows: list[Row]
    decisions: list[Decision]

    def charged(self, metered: Metered) -> None:
        pass

    def stream_judged(self, stream: OwnStream, row: Callable[[], Row], verdict: Verdict | None) -> None:
        self.rows.append(row())

    def reply_stated(self, reply: StatedReply) -> None: ...

    def foreign_judged(self, row: Row) -> None:
        raise AssertionError(row)

    def decided(self, decisions: list[Decision]) -> None:
        self.decisions += decisions
