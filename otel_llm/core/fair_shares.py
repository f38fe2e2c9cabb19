"""Fair shares of bounded tables: a share for each owner first, then the least recently used among idle entries.

An owner is a tenant or a sender. There are two kinds of tables:

- Entries that must stay until they end, as exports that wait and streams in flight: `has_room` reserves the last
  eighth for owners that have less than an eighth. One owner cannot fill the table.
- Entries that can be forgotten, as label sets: a `FairTable` names the entry that gives way to a new one. An owner
  alone may have the whole table; the more owners there are, the smaller the share of each.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

K = TypeVar("K")

_RESERVED: Final = 8


def has_room(own: int, held: int, most: int, more: int = 1) -> bool:
    """Return whether an owner that has `own` of the `held` entries may add `more` to a table of `most`.

    The last eighth is reserved for owners that have less than an eighth. A table of less than eight has no reserve.
    """
    reserved = most // _RESERVED
    return held + more <= most and (not reserved or held + more <= most - reserved or own + more <= reserved)


@dataclass(slots=True)
class _Entry:
    owner: str
    cost: tuple[int, ...]


@dataclass(slots=True)
class _Owner(Generic[K]):
    held: list[int]
    idle: OrderedDict[K, None] = field(default_factory=OrderedDict)
    busy: OrderedDict[K, None] = field(default_factory=OrderedDict)
    """Both in the order of their use, the oldest first."""


class FairTable(Generic[K]):
    """The keys of a bounded table, and which of them gives way to a new one. Not thread-safe; each call is O(owners).

    `most`: the limit of each resource, as entries and bytes. In a full table

    1. the owner with the largest share gives way, if it would still have no less than the new entry's owner: its least
       recently used idle entry, or if all are in use, its least recently used one;
    2. else the new entry's owner does: its least recently used idle entry. If all are in use, the new one is refused.

    The share of an owner is its largest share of a resource. Source: Ghodsi et al., "Dominant Resource
    Fairness", NSDI 2011.
    """

    def __init__(self, *most: int) -> None:
        self._most = list(most)
        self._held = [0] * len(most)
        self._entries: dict[K, _Entry] = {}
        self._owners: dict[str, _Owner[K]] = {}
        self.gave_way = 0
        """How many entries gave way to others."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    @property
    def is_full(self) -> bool:
        """Return whether there is no room for one more of each resource."""
        return not self._fits([1] * len(self._most))

    def admit(self, key: K, owner: str, *cost: int) -> list[K]:
        """Add a new entry, idle and just used, unless it is refused; return the entries that gave way to it.

        `cost`: of each resource, 1 by default. Others may have given way to an entry that is refused in the end, if it
        costs more than one of them.
        """
        assert key not in self._entries  # noqa: S101  the callers look first
        cost = cost or (1,) * len(self._most)
        if any(one > most for one, most in zip(cost, self._most, strict=True)):
            return []
        gone: list[K] = []
        while not self._fits(cost):
            victim = self._victim(owner, cost)
            if victim is None:
                return gone
            self._give_way(victim, gone)
        own = self._owners.get(owner)
        if own is None:
            own = self._owners[owner] = _Owner([0] * len(self._most))
        self._entries[key] = _Entry(owner, cost)
        own.idle[key] = None
        for at, one in enumerate(cost):
            own.held[at] += one
            self._held[at] += one
        return gone

    def touch(self, key: K) -> None:
        """Note a use of an entry."""
        own = self._owners[self._entries[key].owner]
        (own.idle if key in own.idle else own.busy).move_to_end(key)

    def hold(self, key: K) -> None:
        """Note that an entry is in use from now on, as while it has a stream in flight."""
        own = self._owners[self._entries[key].owner]
        own.idle.pop(key, None)
        own.busy[key] = None
        own.busy.move_to_end(key)

    def rest(self, key: K) -> None:
        """Note that an entry is idle from now on; it was used until now."""
        own = self._owners[self._entries[key].owner]
        own.busy.pop(key, None)
        own.idle[key] = None
        own.idle.move_to_end(key)

    def drop(self, key: K) -> None:
        """Remove an entry; there may be none."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        own = self._owners[entry.owner]
        own.idle.pop(key, None)
        own.busy.pop(key, None)
        for at, one in enumerate(entry.cost):
            own.held[at] -= one
            self._held[at] -= one
        if not (own.idle or own.busy):
            del self._owners[entry.owner]

    def reserve(self, *cost: int) -> list[K]:
        """Keep so much of each resource for other uses from now on; return the entries that gave way to that."""
        for at, one in enumerate(cost):
            self._most[at] -= one
        gone: list[K] = []
        while self._entries and not self._fits([0] * len(self._most)):
            self._give_way(_oldest(self._largest()[1], in_use=True), gone)
        return gone

    def _fits(self, cost: Sequence[int]) -> bool:
        return all(held + one <= most for held, one, most in zip(self._held, cost, self._most, strict=True))

    def _victim(self, owner: str, cost: Sequence[int]) -> K | None:
        """Return the entry that gives way to one of this owner; None if there is none."""
        own = self._owners.get(owner)
        if own is not None:
            cost = [held + one for held, one in zip(own.held, cost, strict=True)]
        share, largest = self._largest()
        if largest is not own and share > self._share(cost):
            return _oldest(largest, in_use=True)
        return None if own is None else _oldest(own, in_use=False)

    def _largest(self) -> tuple[float, _Owner[K]]:
        return max(((self._share(one.held), one) for one in self._owners.values()), key=lambda found: found[0])

    def _share(self, amounts: Sequence[int]) -> float:
        return max(amount / max(most, 1) for amount, most in zip(amounts, self._most, strict=True))

    def _give_way(self, key: K | None, gone: list[K]) -> None:
        assert key is not None  # noqa: S101  an owner in the table has an entry
        self.drop(key)
        self.gave_way += 1
        gone.append(key)


def _oldest(own: _Owner[K], *, in_use: bool) -> K | None:
    """Return the least recently used idle entry; if there is none, with `in_use`, the least recently used one."""
    return next(iter(own.idle), next(iter(own.busy), None) if in_use else None)
