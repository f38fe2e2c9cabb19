"""The totals of files that keep a sample of their requests: how many there were, and how many of them ended how."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from otel_llm.audit.kernel.judged_columns import texts_of
from otel_llm.slo.classes import ABORTED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_llm.audit.kernel.judged_columns import Rows


def with_totals(summary: dict[str, Any], rows: Rows, unkept: Mapping[str, int]) -> dict[str, Any]:
    """Return a summary whose counts of requests include those that the files do not keep; `unkept`: by outcome."""
    more = sum(unkept.values())
    if not more:
        return summary
    classes = summary["classes"]
    alone = sum(map(len, classes.values())) == 1
    counted = {
        name: {place: of_totals(figures, rows, unkept, alone=alone) for place, figures in places.items()}
        for name, places in classes.items()
    }
    return {**summary, "requests": summary["requests"] + more, "classes": counted}


def of_totals(figures: Mapping[str, Any], rows: Rows, unkept: Mapping[str, int], *, alone: bool) -> dict[str, Any]:
    """Return the figures of a group with the counts of all requests, if it is `alone` in its recording.

    A tool samples each outcome by itself, so the share of aborted requests is that of the totals. The class of a
    request that is not kept is not known: of several groups each has the counts of its sample, and no such share.
    """
    more = sum(unkept.values())
    if not more:
        return dict(figures)
    if not alone:
        return {**figures, "aborted_share": None}
    outcomes = texts_of(rows, "outcome")
    aborted = sum(int((outcomes == name).sum()) + unkept.get(name, 0) for name in ABORTED)
    requests = figures["requests"] + more
    return {
        **figures,
        "requests": requests,
        "undetermined": figures["undetermined"] + more,
        "aborted_share": aborted / requests,
    }
