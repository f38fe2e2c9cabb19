"""The budget of a rule's action: limits per request, per instance in a sliding window, and in flight."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable

    from otel_llm.rules.files.ruleset import Limits


class Spends:
    """The last instants at which actions were spent (ns): as many as the largest limit counts."""

    __slots__ = ("_at",)

    def __init__(self, most: int, former: Spends | None = None) -> None:
        self._at: deque[int] = deque(() if former is None else former._at, maxlen=most)

    @property
    def most(self) -> int:
        """Return the number of instants that are kept."""
        return self._at.maxlen or 0

    def within(self, limit: tuple[int, int], now_ns: int) -> bool:
        """Tell whether one more is within a limit of (count, window in ns)."""
        return self.room_ns(limit, now_ns) <= now_ns

    def room_ns(self, limit: tuple[int, int], now_ns: int) -> int:
        """Return when one more is within a limit of (count, window in ns): `now_ns` if it is now."""
        count, window_ns = limit
        return now_ns if len(self._at) < count else max(now_ns, self._at[-count] + window_ns)

    def spend(self, now_ns: int) -> None:
        """Count one more."""
        self._at.append(now_ns)

    def take_back(self) -> None:
        """Count the newest no longer: nothing of it was begun."""
        if self._at:
            self._at.pop()


class Budget:
    """The spendings of one action of one rule; instants in ns on the collector's axis, never going back.

    `request` is the key of a limit `per_request`: a request's trace id and span id, which all its choices share; for
    the scopes instance and class the labels. An action in shadow spends as if it were done. Its place in flight is
    given back when its time to live is over: nothing is confirmed in shadow.
    """

    __slots__ = ("_ends", "_instances", "_limits", "_requests")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._requests: Counter[Hashable] = Counter()
        self._instances: defaultdict[str, deque[int]] = defaultdict(deque)
        self._ends: list[int] = []

    def take(
        self, request: Hashable, instance: str, now_ns: int, ttl_ns: int | None, group: Spends | None = None
    ) -> dict[str, bool]:
        """Spend one action if every limit allows it; return whether each set limit does.

        `group`: the spendings of the group's rules, where one of them limits these. A spending counts in a window of
        length D until D after it, exclusive.
        """
        limits = self._limits
        within: dict[str, bool] = {}
        if limits.per_request is not None:
            within["per_request"] = self._requests[request] < limits.per_request
        if limits.per_instance is not None:
            count, window_ns = limits.per_instance
            spent = self._instances[instance]
            while spent and spent[0] <= now_ns - window_ns:
                spent.popleft()
            within["per_instance"] = len(spent) < count
        if limits.per_group is not None and group is not None:
            within["per_group"] = group.within(limits.per_group, now_ns)
        if limits.in_flight is not None:
            while self._ends and self._ends[0] <= now_ns:
                heappop(self._ends)
            within["in_flight"] = len(self._ends) < limits.in_flight
        if all(within.values()):
            self._spend(request, instance, now_ns, ttl_ns)
            if group is not None:
                group.spend(now_ns)
        return within

    def forget(self, request: Hashable) -> None:
        """Drop the count of a request without streams."""
        self._requests.pop(request, None)

    def _spend(self, request: Hashable, instance: str, now_ns: int, ttl_ns: int | None) -> None:
        if self._limits.per_request is not None:
            self._requests[request] += 1
        if self._limits.per_instance is not None:
            self._instances[instance].append(now_ns)
        if self._limits.in_flight is not None and ttl_ns is not None:
            heappush(self._ends, now_ns + ttl_ns)
