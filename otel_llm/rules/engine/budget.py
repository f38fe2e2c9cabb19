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
    """The spendings of one action of one rule; instants in ns on one axis, never going back.

    `request` is the key of a limit `per_request`: a request's trace id and span id, which all its choices share; for
    the scopes instance and class the labels. `group`: the spendings of the group's rules by the same verb, if one of
    them limits these.

    A decided action is taken (`take`): one in shadow spends as if it were done, and its place in flight is given back
    when its time to live is over, since nothing is confirmed. An attempt begins and ends (`begin`, `end`): its place in
    flight is given back at its end, and one that was not done does not count for its request.
    """

    __slots__ = ("_ends", "_instances", "_limits", "_open", "_requests")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._requests: Counter[Hashable] = Counter()
        most = 0 if limits.per_instance is None else limits.per_instance[0]
        self._instances: defaultdict[str, Spends] = defaultdict(lambda: Spends(most))
        self._ends: list[int] = []
        """A heap of the ends of the times to live."""
        self._open = 0

    def within(self, request: Hashable, instance: str, now_ns: int, group: Spends | None = None) -> dict[str, bool]:
        """Return for each limit that is set whether one more is within it.

        A spending counts in a window of length D until D after it, exclusive.
        """
        limits = self._limits
        within: dict[str, bool] = {}
        if limits.per_request is not None:
            within["per_request"] = self._requests[request] < limits.per_request
        if limits.per_instance is not None:
            within["per_instance"] = self._instances[instance].within(limits.per_instance, now_ns)
        if limits.per_group is not None and group is not None:
            within["per_group"] = group.within(limits.per_group, now_ns)
        if limits.in_flight is not None:
            while self._ends and self._ends[0] <= now_ns:
                heappop(self._ends)
            within["in_flight"] = self._open + len(self._ends) < limits.in_flight
        return within

    def room_ns(self, instance: str, now_ns: int, group: Spends) -> int:
        """Return when the windows have room for one more; the other limits depend on what is open."""
        limits = self._limits
        dues = [now_ns]
        if limits.per_instance is not None:
            dues.append(self._instances[instance].room_ns(limits.per_instance, now_ns))
        if limits.per_group is not None:
            dues.append(group.room_ns(limits.per_group, now_ns))
        return max(dues)

    def take(
        self, request: Hashable, instance: str, now_ns: int, ttl_ns: int | None, group: Spends | None = None
    ) -> dict[str, bool]:
        """Spend one action if every limit allows it; return whether each set limit does."""
        within = self.within(request, instance, now_ns, group)
        if all(within.values()):
            self._spend(request, instance, now_ns, group)
            if self._limits.in_flight is not None and ttl_ns is not None:
                heappush(self._ends, now_ns + ttl_ns)
        return within

    def begin(self, request: Hashable, instance: str, now_ns: int, group: Spends) -> None:
        """Count an attempt that begins."""
        self._spend(request, instance, now_ns, group)
        self._open += 1

    def end(self, request: Hashable, instance: str, group: Spends, *, done: bool, begun: bool = True) -> None:
        """Count an attempt no longer as open; `begun`: whether a backend was asked at all."""
        self._open -= 1
        if not done and self._requests[request] > 0:
            self._requests[request] -= 1
        if not begun:
            if self._limits.per_instance is not None:
                self._instances[instance].take_back()
            group.take_back()

    def forget(self, request: Hashable) -> None:
        """Drop the count of a request that is over."""
        self._requests.pop(request, None)

    def _spend(self, request: Hashable, instance: str, now_ns: int, group: Spends | None) -> None:
        if self._limits.per_request is not None:
            self._requests[request] += 1
        if self._limits.per_instance is not None:
            self._instances[instance].spend(now_ns)
        if group is not None:
            group.spend(now_ns)
