"""The tokens that were recorded of replies beside those that the replies state, by model and provider."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client.core import HistogramMetricFamily, Metric

from otel_llm.core.fair_shares import FairTable
from otel_llm.instrumentation.segments.count_check import REMEDY, CountCheck, difference
from otel_llm.live.histogram import Histogram
from otel_llm.live.labels import shortened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_llm.slo.stated_total import StatedReply

FAMILY: Final = "otel_llm_token_estimate_ratio"
HELP: Final = "Recorded tokens of a reply / the tokens that it states."
LABELS: Final = ("model", "provider")
BUCKETS: Final = (0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.01, 1.1, 1.25, 1.5, 2.0, 4.0, 8.0)
MOST_SETS: Final = 20
"""The most label sets: a small part of a scrape."""
OTHER: Final = ("other", "other")


class StatedReplies:
    """The ratios of all replies that state their length, and notes for people.

    At most MOST_SETS models are kept; for one more the one gives way that stated nothing for longest (`FairTable`).
    """

    def __init__(self) -> None:
        self._ratios: dict[tuple[str, str], tuple[Histogram, CountCheck]] = {}
        self._table = FairTable[tuple[str, str]](MOST_SETS)
        self._notes: dict[tuple[str, str], str] = {}

    @property
    def notes(self) -> list[str]:
        """Return a sentence for each model whose recorded tokens are off, although the estimate was learned."""
        return list(self._notes.values())

    @property
    def gave_way(self) -> int:
        """Return how many models gave way to others."""
        return self._table.gave_way

    def add(self, reply: StatedReply) -> str | None:
        """Count a reply; return the note on its model, once."""
        key = (shortened(reply.model), shortened(reply.provider))
        if key in self._table:
            self._table.touch(key)
        elif key != OTHER:
            for gone in self._table.admit(key, reply.tenant):
                del self._ratios[gone]
                self._notes.pop(gone, None)
            key = key if key in self._table else OTHER
        histogram, check = self._ratios.setdefault(key, (Histogram(BUCKETS, per_unit=1), CountCheck()))
        histogram.observe(reply.recorded / reply.tokens)
        if reply.learned:
            check.add(reply.recorded, reply.tokens)
        if key in self._notes or key == OTHER or (times := check.times) is None:
            return None
        note = f"{difference(*key, times)}: runways and rates of streams in flight are off by that; {REMEDY}"
        self._notes[key] = note
        return note

    def families(self) -> Iterator[Metric]:
        """Yield the histogram."""
        shown = HistogramMetricFamily(FAMILY, HELP, labels=LABELS)
        for key, (histogram, _) in list(self._ratios.items()):
            shown.add_metric(key, histogram.cumulative(), histogram.total)
        yield shown
