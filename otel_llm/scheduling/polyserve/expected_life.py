"""The KV that the requests of a replica are expected to reach."""

from __future__ import annotations

from typing import Final

STEP: Final = 64
"""Expected ends are rounded up to so many iterations, so that a look ahead costs a step for each, not for a request."""


class ExpectedLife:
    """The contexts of a replica's requests until their expected ends; each grows by a token an iteration.

    The largest KV is reached just before a request ends (PolyServe, section 4.5), so only these instants are looked at.
    A request that is over its expected end counts as it is now.
    """

    __slots__ = ("_by_end", "_entries")

    def __init__(self) -> None:
        self._by_end: dict[int, list[int]] = {}
        """By the step of the end: the number of requests, and the sum of their contexts at iteration 0."""
        self._entries: dict[int, tuple[int, int]] = {}

    def add(self, number: int, context: int, first: int, output: int) -> None:
        """Add request `number`, which has `context` tokens at iteration `first` and ends `output` iterations later."""
        end, base = -(-(first + output) // STEP), context - first
        self._entries[number] = (end, base)
        found = self._by_end.get(end)
        if found is None:
            self._by_end[end] = [1, base]
        else:
            found[0] += 1
            found[1] += base

    def remove(self, number: int) -> None:
        """Remove a request; one that is not there is ignored."""
        entry = self._entries.pop(number, None)
        if entry is None:
            return
        end, base = entry
        found = self._by_end[end]
        if found[0] == 1:
            del self._by_end[end]
        else:
            found[0] -= 1
            found[1] -= base

    def peak_kv(self, now: int, iteration: int, context: int, first: int, output: int) -> int:
        """Return the largest KV tokens from `iteration` on with one more request, as in `add`; at least `now`.

        `now`: the KV tokens now, with that request.
        """
        own_end, own_base = -(-(first + output) // STEP), context - first
        peak = now
        count = bases = 0
        is_counted = False
        for end in sorted(self._by_end, reverse=True):
            if end * STEP < iteration:
                break
            if not is_counted and end <= own_end:
                is_counted = True
                count += 1
                bases += own_base
                if end < own_end and (kv := count * own_end * STEP + bases) > peak:
                    peak = kv
            found = self._by_end[end]
            count += found[0]
            bases += found[1]
            kv = count * end * STEP + bases
            if kv > peak:
                peak = kv
        if not is_counted and (kv := (count + 1) * own_end * STEP + bases + own_base) > peak:
            peak = kv
        return peak
