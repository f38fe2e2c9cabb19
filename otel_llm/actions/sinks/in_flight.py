"""The streams in flight as rows of their facts for the web port, and as gauges for `/metrics`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otel_llm.actions.sinks.sinks import key_of
from otel_llm.live.selection import Filter
from otel_llm.live.user_metrics import RUNWAY_BANDS, RUNWAY_BOUNDS_S
from otel_llm.slo.live.columns import COMMIT_NS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt
    from prometheus_client.core import Metric

    from otel_llm.actions.sinks.sinks import Sinks
    from otel_llm.evaluate.streams.stream_in_flight import Group, StreamInFlight
    from otel_llm.evaluate.streams.stream_table import StreamTable
    from otel_llm.evaluate.usage import Meter
    from otel_llm.formats.rows import Row

    Ints = npt.NDArray[np.int64]

SHOWN_STREAMS: Final = 100
NAMES: Final = 100
"""The models and instances that a viewer can choose from, those with the most streams."""
ALL: Final = Filter()
SHOWN_ROWS: Final = 200
_RUNWAY_BOUNDS_NS: Final = np.array(RUNWAY_BOUNDS_S, dtype=np.int64) * 1_000_000_000


def streams_in_flight(table: StreamTable, sinks: Sinks, now_ns: int, chosen: Filter = ALL) -> dict[str, Any]:
    """Return the streams in flight that pass a filter, in its order, and the last verdicts and decisions."""
    slots = slots_of(table, chosen.tenant)
    runway_ns = table.runway_ns(slots, now_ns)
    streams, matching = first_of(table, slots, now_ns, chosen, SHOWN_STREAMS)
    return {
        "now_unix_nano": now_ns,
        "in_flight": len(slots),
        "starving": int((runway_ns < 0).sum()),
        "matching": matching,
        **names_of(count_by_group(table, slots, runway_ns)),
        "streams": [facts_of(stream, now_ns) for stream in streams],
        "recent": [row() for row in sinks.recent.of(chosen.tenant)[-SHOWN_ROWS:]],
        "decisions": sinks.recent_decisions.of(chosen.tenant)[-SHOWN_ROWS:],
    }


def slots_of(table: StreamTable, tenant: str | None) -> Ints:
    """Return the slots of the streams in flight of a tenant, or of all tenants (None), (S,) int64."""
    slots = table.slots_in_flight()
    return slots if tenant is None else _passing(table, slots, lambda group: group.tenant == tenant)


def gauges_in_flight(table: StreamTable, meter: Meter, sinks: Sinks, now_ns: int) -> list[Metric]:
    """Charge what readers got and waited up to now; return the numbers of streams in flight, by runway too."""
    charge_in_flight(meter, sinks)
    slots = table.slots_in_flight()
    counts = count_by_group(table, slots, table.runway_ns(slots, now_ns))
    return list(sinks.metrics.gauges({key_of(group): bands for group, bands in counts.items()}))


def first_of(
    table: StreamTable, slots: Ints, now_ns: int, chosen: Filter, most: int
) -> tuple[list[StreamInFlight], int]:
    """Return the first streams that pass a filter, in its order, and how many pass.

    `slots`: (S,) int64, those in flight of its tenant.
    """
    if not chosen.matches_all:
        slots = _passing(table, slots, lambda group: chosen.matches(group.slo_class, group.model, group.instance))
    rank = _rank(table, slots, now_ns, chosen.sort)
    at = np.argpartition(rank, most)[:most] if len(slots) > most else np.arange(len(slots))
    streams = [table.streams[slot] for slot in slots[at[np.argsort(rank[at], kind="stable")]].tolist()]
    return [stream for stream in streams if stream is not None], len(slots)


def _passing(table: StreamTable, slots: Ints, passes: Callable[[Group], bool]) -> Ints:
    """Return the slots whose group passes, (S,) int64."""
    passing = [group for group in np.unique(table.group[slots]).tolist() if passes(table.groups[group])]
    found: Ints = slots[np.isin(table.group[slots], passing)]
    return found


def _rank(table: StreamTable, slots: Ints, now_ns: int, sort: str) -> Ints:
    """Return a number of each stream, (S,), by which they ascend in an order of `SORTS`."""
    if sort == "tokens":
        return -table.tokens[slots]
    x_ns = table.now_ns(slots, now_ns)
    if sort == "idle":
        return -table.idle_ns(slots, x_ns)
    return table.runway_at(slots, x_ns) if sort == "runway" else table.rows[slots, COMMIT_NS] - x_ns


def names_of(counts: Mapping[Group, Sequence[int]]) -> dict[str, list[str]]:
    """Return the classes, models and instances that have the most streams in flight, in order of name."""
    found: dict[str, list[str]] = {}
    for at, name in enumerate(("slo_classes", "models", "instances")):
        numbers: Counter[str] = Counter()
        for group, bands in counts.items():
            numbers[group[at]] += sum(bands)
        found[name] = sorted(value for value, _ in numbers.most_common(NAMES) if value)
    return found


def charge_in_flight(meter: Meter, sinks: Sinks) -> None:
    """Charge what readers of streams in flight got and waited up to now."""
    for metered in meter.charge_in_flight():
        sinks.charged(metered)


def count_by_group(table: StreamTable, slots: Ints, runway_ns: Ints) -> dict[Group, list[int]]:
    """Return by group the number of streams in each of RUNWAY_BANDS; `slots`, `runway_ns`: (S,) int64."""
    width = len(RUNWAY_BANDS)
    cells = table.group[slots] * width + np.searchsorted(_RUNWAY_BOUNDS_NS, runway_ns, side="right")
    numbers = np.bincount(cells, minlength=len(table.groups) * width).reshape(-1, width)
    return {table.groups[at]: numbers[at].tolist() for at in np.flatnonzero(numbers.any(axis=1)).tolist()}


def facts_of(stream: StreamInFlight, now_ns: int) -> Row:
    """Return the in-flight facts of a stream as a JSON-able row, seconds."""
    stream_so_far = stream.stream
    facts = stream_so_far.at(now_ns + stream.offset_ns)
    read_ns = stream_so_far.read_ns
    trace_id, span_id, tenant, choice = stream.key
    return {
        "trace_id": trace_id.hex(),
        "span_id": span_id.hex(),
        "tenant": tenant,
        "choice": choice,
        "slo_class": stream.slo_class,
        "model": stream.model,
        "instance": stream.instance,
        "measured_at": stream.measured_at,
        "tokens": facts.tokens,
        "tokens_read": facts.tokens_read,
        "age_s": facts.age_ns / 1e9,
        "ttfo_s": (read_ns[0] - stream_so_far.commit_ns) / 1e9 if len(read_ns) else None,
        "ttft_s": None if facts.ttft_ns is None else facts.ttft_ns / 1e9,
        "gap_s": facts.gap_ns / 1e9,
        "idle_s": facts.idle_ns / 1e9,
        "runway_s": facts.runway_ns / 1e9,
        "fluidity_index": facts.fluidity_index,
        "ended": stream.ended_ns is not None,
    }
