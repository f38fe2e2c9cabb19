"""The summary row by row in plain Python: what the product's, of arrays, must give to the bit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from otel_llm.slo.batch.judged import Masked
from otel_llm.slo.classes import ABORTED, Objective, SloClasses
from otel_llm.slo.figures import NUMBERS, TEXTS
from otel_llm.slo.fluid.fluid_rate import fluid_token_rate, targets
from otel_llm.slo.quantiles import P50, P99, rank
from otel_llm.slo.summary import Figures, Judgements

Row = Mapping[str, Any]
"""The columns of `Judgements`, those of one request."""


def judgements(rows: Sequence[Row]) -> Judgements:
    """Return rows in the form that the product summarises."""

    def column(name: str) -> Masked:
        cells = [row[name] for row in rows]
        plain = [0 if cell is None else cell for cell in cells]
        return Masked(np.array(plain), np.array([cell is not None for cell in cells], np.bool_))

    texts = {name: np.array([row[name] for row in rows], np.object_) for name in TEXTS}
    return Judgements(texts, {name: column(name) for name in NUMBERS})


def incomplete(row: Row) -> bool:
    """Tell whether tokens of a request, or its commit, are missing, so that it cannot be judged."""
    return row["start_unix_nano"] is None or (row["coverage"] is not None and row["coverage"] < 1)


def summarise(rows: Sequence[Row], classes: SloClasses, span_ns: int | None, skipped: int) -> dict[str, Any]:
    """Return the whole object, as the product's `summarise`."""
    groups: dict[str, dict[str, list[Row]]] = {name: {} for name in classes.names}
    for row in rows:
        groups[row["slo_class"]].setdefault(row["measured_at"], []).append(row)
    span_s = None if span_ns is None else span_ns / 1e9
    figures_of = {
        name: {place: figures(found, classes.get(name).objective, span_s) for place, found in sorted(places.items())}
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


def figures(rows: Sequence[Row], objective: Objective, span_s: float | None) -> Figures:
    """Return the figures of one class at one place, as the product's `figures`."""
    complete = [row for row in rows if not incomplete(row)]
    hits = [row for row in complete if row["met"] is True]
    judged = len(hits) + sum(row["met"] is False for row in complete)
    tbts = (row["fluid_tbt_ns"] for row in complete if row["fluid_tbt_ns"] is not None)
    rate = fluid_token_rate(tbts, targets(objective)[1])
    benefit = math.fsum(row["benefit"] for row in complete if row["benefit"] is not None)
    counted = not rows or any(row["tokens_read"] is not None for row in complete)
    valued = not rows or any(row["benefit"] is not None for row in complete)
    judgeable = valued or judged > 0
    fluidity = _sorted(row["fluidity_index"] for row in complete)
    idle = _sorted(row["idle_s"] for row in complete)
    ttft = _sorted(row["ttft_s"] for row in rows)
    ttfo = _sorted(row["ttfo_s"] for row in rows)
    return {
        "requests": len(rows),
        "tokens": _total(row["tokens"] for row in rows),
        "incomplete": len(rows) - len(complete),
        "undetermined": sum(row["met"] is None for row in rows),
        "aborted_share": _share(sum(row["outcome"] in ABORTED for row in rows), len(rows)),
        "attainment": _share(len(hits), judged),
        "throughput_tok_s": _per_second(_total(row["tokens_read"] for row in complete), span_s) if counted else None,
        "throughput_req_s": _per_second(len(rows), span_s),
        "goodput_tok_s": _per_second(_total(row["tokens_read"] for row in hits), span_s) if judgeable else None,
        "goodput_req_s": _per_second(len(hits), span_s) if judgeable else None,
        "smooth_goodput_tok_s": _per_second(benefit, span_s) if valued else None,
        "fluidity_p50": _percentile(fluidity, P50),
        "fluidity_ok_share": _fluid_share(complete, objective),
        "idle_p50_s": _percentile(idle, P50),
        "idle_p99_s": _percentile(idle, P99),
        "ttfo_p50_s": _percentile(ttfo, P50),
        "ttfo_p99_s": _percentile(ttfo, P99),
        **_latency("ttft", ttft),
        **_gaps(complete),
        **_latency("tpot", _sorted(row["tpot_s"] for row in complete)),
        **_latency("e2e", _sorted(row["e2e_s"] for row in rows if row["outcome"] == "completed")),
        "fluid_token_rate": None if rate is None else rate.tokens_per_s,
    }


def _latency(name: str, ordered: Sequence[float]) -> Figures:
    return {
        f"{name}_mean_s": math.fsum(ordered) / len(ordered) if ordered else None,
        f"{name}_p50_s": _percentile(ordered, P50),
        f"{name}_p90_s": _percentile(ordered, (9, 10)),
        f"{name}_p99_s": _percentile(ordered, P99),
    }


def _gaps(rows: Sequence[Row]) -> Figures:
    """Return the figures of ITL of rows, which hold the mean of each request's gaps and no single gap."""
    some = [row for row in rows if row["tokens"] is not None and row["tpot_s"] is not None]
    gaps = sum(max(0, row["tokens"] - 1) for row in some)
    spans = math.fsum(row["tpot_s"] * (row["tokens"] - 1) for row in some if row["tokens"] > 1)
    return {"itl_mean_s": spans / gaps if gaps else None, "itl_p50_s": None, "itl_p90_s": None, "itl_p99_s": None}


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
