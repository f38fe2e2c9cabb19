"""The state that the live page shows, collected in the evaluator's thread in a few passes over the table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from otel_llm.actions.sinks.in_flight import (
    NAMES,
    charge_in_flight,
    count_by_group,
    facts_of,
    first_of,
    names_of,
    slots_of,
)
from otel_llm.formats.records import DEFAULT_TENANT
from otel_llm.live.feed import Collected, Fleet
from otel_llm.live.history import Load
from otel_llm.slo.live.reading_curve import curve_points, read_by_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    import numpy.typing as npt

    from otel_llm.actions.sinks.sinks import Sinks
    from otel_llm.evaluate.group_facts import Groups
    from otel_llm.evaluate.streams.stream_in_flight import Group, StreamInFlight
    from otel_llm.evaluate.streams.stream_table import StreamTable
    from otel_llm.evaluate.usage import Meter
    from otel_llm.formats.records import StreamKey
    from otel_llm.live.selection import Filter
    from otel_llm.rules.engine.rule_engine import RuleEngine
    from otel_llm.slo.classes import SloClasses

    Ints = npt.NDArray[np.int64]
    More = Callable[[StreamKey], Mapping[str, Any]]

PAGE_STREAMS: Final = 50
"""The streams on a page: those closest to starving."""
DECISIONS: Final = 12


def _nothing(_key: StreamKey) -> Mapping[str, Any]:
    """Return no further fields."""
    return {}


class Evaluated(Protocol):
    """An evaluator of streams in flight: a collector's, or a relay's."""

    @property
    def table(self) -> StreamTable:
        """Return the streams in flight, as of now."""

    @property
    def meter(self) -> Meter:
        """Return the meter of their charges."""

    @property
    def rules(self) -> RuleEngine:
        """Return the engine of stream rules."""

    @property
    def classes(self) -> SloClasses:
        """Return the classes that judge streams."""

    @property
    def groups(self) -> Groups:
        """Return the facts and rules of instances and classes."""


def live_state(
    evaluator: Evaluated,
    live: Mapping[StreamKey, StreamInFlight],
    sinks: Sinks,
    now_ns: int,
    filters: Collection[Filter],
    followed: Collection[StreamKey],
    more: More = _nothing,
) -> Collected:
    """Return the state at `now_ns` (unix ns), with a page for each filter, and each followed stream in flight.

    `live`: the streams without a verdict. `more`: returns further fields of a stream that is shown. The cost: a few
    passes over the columns of all streams, one more for each filter, `PAGE_STREAMS` rows for each filter, and the token
    times of each followed stream.
    """
    table = evaluator.table
    charge_in_flight(evaluator.meter, sinks)
    pages = {}
    for chosen in filters:
        slots = slots_of(table, chosen.tenant)
        streams, matching = first_of(table, slots, now_ns, chosen, PAGE_STREAMS)
        pages[chosen] = {"matching": matching, "streams": [_row(evaluator, one, now_ns, more) for one in streams]}
    shown = {key: followed_stream(evaluator, live, key, now_ns, more) for key in followed}
    return Collected(
        now_ns=now_ns,
        fleets={
            tenant: _fleet(evaluator, sinks, now_ns, tenant) for tenant in {None, *(one.tenant for one in filters)}
        },
        pages=pages,
        streams={key: one for key, one in shown.items() if one is not None},
    )


def _fleet(evaluator: Evaluated, sinks: Sinks, now_ns: int, tenant: str | None) -> Fleet:
    """Return what is shown of all streams of a tenant, or of all tenants (None)."""
    table = evaluator.table
    slots = slots_of(table, tenant)
    runway_ns = table.runway_ns(slots, now_ns)
    counts = count_by_group(table, slots, runway_ns)
    shown = {
        "now_unix_nano": now_ns,
        "in_flight": len(slots),
        "waiting": int((runway_ns < 0).sum()),
        **names_of(counts),
        "objectives": _objectives(evaluator.classes),
        "rules": _firing(evaluator, tenant),
        "notes": sinks.notes() if tenant is None else [],
        "decisions": sinks.recent_decisions.of(tenant)[-DECISIONS:][::-1],
    }
    return Fleet(shown, _loads(counts, sinks, tenant), sinks.recent.of(tenant))


def followed_stream(
    evaluator: Evaluated, live: Mapping[StreamKey, StreamInFlight], key: StreamKey, now_ns: int, more: More = _nothing
) -> dict[str, Any] | None:
    """Return a stream's row and its curve; None if it is not in flight."""
    stream = live.get(key)
    if stream is None or not evaluator.table.in_flight[stream.slot]:
        return None
    return {"row": _row(evaluator, stream, now_ns, more), "curve": _curve(stream)}


def _row(evaluator: Evaluated, stream: StreamInFlight, now_ns: int, more: More) -> dict[str, Any]:
    fields = {"pace_s": stream.slo.pace_ns / 1e9, "rules": evaluator.rules.firing_on(stream.key)}
    return {**facts_of(stream, now_ns), **fields, **more(stream.key)}


def _loads(counts: Mapping[Group, Sequence[int]], sinks: Sinks, tenant: str | None) -> dict[tuple[str, str], Load]:
    """Return the loads by class and place of measurement."""
    found = {key: Load(totals=totals) for key, totals in sinks.felt.totals(tenant).items()}
    for group, bands in counts.items():
        key = group.slo_class, group.measured_at
        known = found.get(key, Load())
        found[key] = known._replace(in_flight=known.in_flight + sum(bands), waiting=known.waiting + bands[0])
    return found


def _objectives(classes: SloClasses) -> dict[str, float]:
    """Return the attainment that each class promises, of those that promise one."""
    promised = {slo.name: slo.objective.attainment for slo in classes.classes}
    return {name: float(share) for name, share in promised.items() if share is not None}


def _firing(evaluator: Evaluated, tenant: str | None) -> list[dict[str, Any]]:
    """Return the rules that fire now on a tenant's, or any tenant's (None), streams, instances or classes."""
    numbers = evaluator.rules.firing(tenant)
    scopes: dict[str, list[str]] = {}
    for name, labels in evaluator.groups.engine.firing():
        if tenant in (None, dict(labels).get("tenant", DEFAULT_TENANT)):
            scopes.setdefault(name, []).append(" ".join(value for _, value in labels if value))
    known = {rule.name: rule for rule in evaluator.rules.rules.rules}
    return [
        {
            "rule": name,
            "scope": known[name].scope,
            "firing": numbers[name] or len(scopes[name]),
            "on": sorted(scopes.get(name, ()))[:NAMES],
        }
        for name in _in_order(known, {*numbers, *scopes})
    ]


def _in_order(known: Iterable[str], firing: Collection[str]) -> list[str]:
    return [name for name in known if name in firing]


def _curve(stream: StreamInFlight) -> dict[str, Any]:
    """Return the points of a stream's delivery and of its reader, s since the commit.

    `n`: how many tokens, `delivered_s`: when the n-th was there, `read_s`: when the reader had read it. `start_s`: the
    class's reading line begins there with the first token, and has one each `pace_s`.
    """
    slo, arithmetic = stream.slo, stream.stream
    read_ns = np.array(arithmetic.read_ns, dtype=np.int64)  # a copy: a view would keep the array from growing
    if arithmetic.read_counts is not None:
        read_ns = np.repeat(read_ns, np.array(arithmetic.read_counts, dtype=np.int64))
    at = curve_points(read_ns)
    read_by = read_by_ns(read_ns, slo.pace_ns)[at]
    seconds = [np.round((times - arithmetic.commit_ns) / 1e9, 3).tolist() for times in (read_ns[at], read_by)]
    return {
        "n": (at + 1).tolist(),
        "delivered_s": seconds[0],
        "read_s": seconds[1],
        "pace_s": slo.pace_ns / 1e9,
        "start_s": (slo.start_ns + slo.pace_ns) / 1e9,
    }
