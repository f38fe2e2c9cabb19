"""The facts that an action needs of the streams in flight, read at the decision: engine ids, streams to preempt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from otel_llm.actions.execute.events import Candidate, Order
from otel_llm.semconv import GEN_AI_REQUEST_ID

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_llm.evaluate.evaluator import Evaluator
    from otel_llm.evaluate.own_streams.first_hand import FirstHand
    from otel_llm.evaluate.streams.stream_in_flight import StreamInFlight
    from otel_llm.evaluate.streams.stream_table import StreamTable
    from otel_llm.formats.records import StreamKey
    from otel_llm.rules.decisions.decision_records import Decision

MOST_CANDIDATES: Final = 5
"""Candidates of a `preempt` that are kept, the first of the order; there may be thousands."""


@dataclass(frozen=True, slots=True)
class ActionContext:
    """The maker of orders from decisions; called in the evaluator's thread at the decision.

    `table`: the streams in flight, up to date; `find`: one of them by its key; `request_id`: the engine's id of its
    request, as telemetry has it; `may_take`: whether `preempt` may take a stream at all.
    """

    table: Callable[[], StreamTable]
    find: Callable[[StreamKey], StreamInFlight | None]
    request_id: Callable[[StreamKey], object]
    may_take: Callable[[StreamKey], bool] | None = None

    @classmethod
    def of_evaluator(cls, evaluator: Evaluator) -> ActionContext:
        """Return the context of a collector's streams."""

        def request_id(key: StreamKey) -> object:
            stream = evaluator.live.get(key)
            return None if stream is None else stream.resolve().attributes.get(GEN_AI_REQUEST_ID)

        return cls(lambda: evaluator.table, evaluator.live.get, request_id)

    @classmethod
    def of_first_hand(cls, first_hand: FirstHand, may_take: Callable[[StreamKey], bool]) -> ActionContext:
        """Return the context of the streams that a process owns."""

        def request_id(key: StreamKey) -> object:
            stream = first_hand.streams.get(key)
            return None if stream is None else stream.identity.attributes.get(GEN_AI_REQUEST_ID)

        return cls(lambda: first_hand.table, first_hand.streams.get, request_id, may_take)

    def order(self, decision: Decision) -> Order:
        """Return the order of a decision."""
        return Order(decision, self._request_id(decision), self.candidates(decision))

    def candidates(self, decision: Decision) -> tuple[Candidate, ...]:
        """Return the streams that a `preempt` may take, see `victims`; none for others, and where nothing is done."""
        if decision.action != "preempt" or decision.outcome not in ("shadow", "unconfirmed"):
            return ()
        return self.victims(decision.identity.get("instance", ""), decision.tenant, decision.stream, decision.now_ns)

    def victims(self, instance: str, tenant: str, stream: StreamKey | None, now_ns: int) -> tuple[Candidate, ...]:
        """Return the streams that a `preempt` may take, first choice first: lowest priority, then the largest runway.

        They are the tenant's other streams on the instance: telemetry of one tenant must not end the streams of
        another. If it is for a stream, none has a higher priority than this one.
        """
        if not instance:
            return ()
        table = self.table()
        slots = table.slots_in_flight()
        groups, member = np.unique(table.group[slots], return_inverse=True)
        places = [(table.groups[at].instance, table.groups[at].tenant) for at in groups.tolist()]
        here = np.array([one == (instance, tenant) for one in places], dtype=bool)
        slots = slots[here[member]] if slots.size else slots
        if self.may_take is not None:
            slots = np.array([at for at in slots.tolist() if self._may_take(table.streams[at])], dtype=slots.dtype)
        priorities = np.array([one.priority for one in table.classes], dtype=np.int64)[table.slo_index[slots]]
        if stream is not None and (own := self.find(stream)) is not None:
            others = (slots != own.slot) & (priorities <= own.slo.priority)
            slots, priorities = slots[others], priorities[others]
        if not slots.size:
            return ()
        runway_ns = table.runway_ns(slots, now_ns)
        ranks = np.lexsort((-runway_ns, priorities))
        last = ranks[min(MOST_CANDIDATES, len(ranks)) - 1]
        # All that rank equal to the last one too: ids, not slots, decide among those.
        eligible = (priorities < priorities[last]) | ((priorities == priorities[last]) & (runway_ns >= runway_ns[last]))
        found = [
            (int(priorities[at]), -int(runway_ns[at]), one.key, one.slo_class)
            for at in np.flatnonzero(eligible).tolist()
            if (one := table.streams[int(slots[at])]) is not None
        ]
        return tuple(
            Candidate(key, slo_class, priority, -behind_ns / 1e9)
            for priority, behind_ns, key, slo_class in sorted(found)[:MOST_CANDIDATES]
        )

    def _may_take(self, stream: StreamInFlight | None) -> bool:
        return stream is not None and self.may_take is not None and self.may_take(stream.key)

    def _request_id(self, decision: Decision) -> str | None:
        found = None if decision.stream is None else self.request_id(decision.stream)
        return found if isinstance(found, str) else None
