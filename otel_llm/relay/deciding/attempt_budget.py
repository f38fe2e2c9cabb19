"""The budget of attempts at an action: what may begin now, what is open, and what was done."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from otel_llm.rules.engine.budget import Spends

if TYPE_CHECKING:
    from collections.abc import Hashable

    from otel_llm.rules.files.ruleset import Limits


class AttemptBudget:
    """The budget of one action of one rule.

    `per_request` counts attempts that are open or done, `per_instance` and `per_group` those that were begun,
    `in_flight` those that are open. `group` is shared by the actions of one verb in a group.
    """

    def __init__(self, limits: Limits, group: Spends) -> None:
        self.group = group
        self._limits = limits
        self._requests: Counter[Hashable] = Counter()
        most = 0 if limits.per_instance is None else limits.per_instance[0]
        self._instances: defaultdict[str, Spends] = defaultdict(lambda: Spends(most))
        self._open = 0

    def within(self, request: Hashable, instance: str, now_ns: int) -> dict[str, bool]:
        """Return for each limit that is set whether one more attempt is within it."""
        limits = self._limits
        found: dict[str, bool] = {}
        if limits.per_request is not None:
            found["per_request"] = self._requests[request] < limits.per_request
        if limits.per_instance is not None:
            found["per_instance"] = self._instances[instance].within(limits.per_instance, now_ns)
        if limits.per_group is not None:
            found["per_group"] = self.group.within(limits.per_group, now_ns)
        if limits.in_flight is not None:
            found["in_flight"] = self._open < limits.in_flight
        return found

    def room_ns(self, instance: str, now_ns: int) -> int:
        """Return when the windows have room for one more; the other limits depend on what is open."""
        limits = self._limits
        dues = [now_ns]
        if limits.per_instance is not None:
            dues.append(self._instances[instance].room_ns(limits.per_instance, now_ns))
        if limits.per_group is not None:
            dues.append(self.group.room_ns(limits.per_group, now_ns))
        return max(dues)

    def begin(self, request: Hashable, instance: str, now_ns: int) -> None:
        """Count an attempt that begins."""
        self._requests[request] += 1
        self._open += 1
        if self._limits.per_instance is not None:
            self._instances[instance].spend(now_ns)
        self.group.spend(now_ns)

    def end(self, request: Hashable, instance: str, *, done: bool, begun: bool = True) -> None:
        """Count an attempt no longer as open; `begun`: whether a backend was asked at all."""
        self._open -= 1
        if not done and self._requests[request] > 0:
            self._requests[request] -= 1
        if not begun:
            if self._limits.per_instance is not None:
                self._instances[instance].take_back()
            self.group.take_back()

    def forget(self, request: Hashable) -> None:
        """Drop the count of a request that is over."""
        self._requests.pop(request, None)
