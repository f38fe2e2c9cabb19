"""The figures of `audit --format json`: many rows of one class, measured at one place, in a few numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from otel_llm.slo.classes import ABORTED
from otel_llm.slo.fluid import fluid_token_rate, targets
from otel_llm.slo.ranks import P50, P99, rank

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from otel_llm.slo.classes import Objective, SloClasses

    Row = Mapping[str, Any]

Figures = dict[str, int | float | None]


def summarise(
    rows: Sequence[Row],
    classes: SloClasses,
    span_ns: int | None,
    skipped: int,
    fluid_tbts_ns: Sequence[int | None],
) -> dict[str, Any]:
    """Return the whole object; `classes` in it has those that occur, in file order, each by `measured_at`.

    `rows` have the columns of `--requests`; `span_ns`: first commit to last end of them all, None where there is no
    such time; `fluid_tbts_ns`: each row's smallest TBT target (`fluid_tbt_many`), None where it has none.
    """
    groups: dict[str, dict[str, list[int]]] = {name: {} for name in classes.names}
    for index, row in enumerate(rows):
        groups[row["slo_class"]].setdefault(row["measured_at"], []).append(index)
    span_s = None if span_ns is None else span_ns / 1e9
    figures_of = {
        name: {
            place: figures(
                [rows[index] for index in indexes],
                classes.get(name).objective,
                span_s,
                [fluid_tbts_ns[index] for index in indexes],
            )
            for place, indexes in sorted(places.items())
        }
        for name, places in groups.items()
        if places
    }
    return {
        "requests": len(rows),
        "tokens": _total(row["tokens"] for row in rows),
        "span_s": span_s,
        "skipped": skipped,
        "classes": figures_of,
    }


def figures(
    rows: Sequence[Row], objective: Objective, span_s: float | None, fluid_tbts_ns: Sequence[int | None]
) -> Figures:
    """Return the figures of one class at one place; None where there is nothing to say.

    Rates are per second of `span_s`, percentiles nearest rank. Incomplete requests are counted, and are in no other
    figure but `requests`, `tokens`, `undetermined`, `aborted_share` and those of what was seen of them (TTFT).
    """
    whole = [not incomplete(row) for row in rows]
    complete = [row for row, is_whole in zip(rows, whole, strict=True) if is_whole]
    hits = [row for row in complete if row["met"] is True]
    judged = len(hits) + sum(row["met"] is False for row in complete)
    tbts = (tbt for tbt, is_whole in zip(fluid_tbts_ns, whole, strict=True) if is_whole and tbt is not None)
    rate = fluid_token_rate(tbts, targets(objective)[1])
    benefit = math.fsum(row["benefit"] for row in complete if row["benefit"] is not None)
    fluidity = _sorted(row["fluidity_index"] for row in complete)
    idle = _sorted(row["idle_s"] for row in complete)
    ttft = _sorted(row["ttft_s"] for row in rows)
    return {
        "requests": len(rows),
        "tokens": _total(row["tokens"] for row in rows),
        "incomplete": len(rows) - len(complete),
        "undetermined": sum(row["met"] is None for row in rows),
        "aborted_share": _share(sum(row["outcome"] in ABORTED for row in rows), len(rows)),
        "attainment": _share(len(hits), judged),
        "throughput_tok_s": _per_second(_total(row["tokens_read"] for row in complete), span_s),
        "throughput_req_s": _per_second(len(rows), span_s),
        "goodput_tok_s": _per_second(_total(row["tokens_read"] for row in hits), span_s),
        "goodput_req_s": _per_second(len(hits), span_s),
        "smooth_goodput_tok_s": _per_second(benefit, span_s),
        "fluidity_p50": _percentile(fluidity, P50),
        "fluidity_ok_share": _fluid_share(complete, objective),
        "idle_p50_s": _percentile(idle, P50),
        "idle_p99_s": _percentile(idle, P99),
        "ttft_p50_s": _percentile(ttft, P50),
        "ttft_p99_s": _percentile(ttft, P99),
        "fluid_token_rate": None if rate is None else rate.tokens_per_s,
    }


def incomplete(row: Row) -> bool:
    """Tell whether tokens of a request, or its commit, are missing, so that it cannot be judged."""
    return row["start_unix_nano"] is None or (row["coverage"] is not None and row["coverage"] < 1)


def _fluid_share(rows: Iterable[Row], objective: Objective) -> float | None:
    wanted = objective.fluidity_index
    if wanted is None:
        return None
    due = [(row["deadlines"], row["deadline_misses"]) for row in rows if row["deadlines"]]
    kept = sum((deadlines - misses) * wanted.denominator >= wanted.numerator * deadlines for deadlines, misses in due)
    return _share(kept, len(due))


def _total(values: Iterable[int | None]) -> int:
    return sum(value for value in values if value is not None)


def _sorted(values: Iterable[float | None]) -> list[float]:
    return sorted(value for value in values if value is not None)


def _percentile(ordered: Sequence[float], share: tuple[int, int]) -> float | None:
    return ordered[rank(len(ordered), share)] if ordered else None


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _per_second(amount: float, span_s: float | None) -> float | None:
    return amount / span_s if span_s else None
