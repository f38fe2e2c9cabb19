"""What the policy knows of a replica beside the replica's own state, and its three checks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic

from otel_llm.scheduling.polyserve.due_times import DueTimes
from otel_llm.scheduling.polyserve.prefill_time import UNIT, PrefillTime
from otel_llm.scheduling.polyserve.replica import ReplicaT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_llm.scheduling.iteration_profile import IterationProfile
    from otel_llm.scheduling.polyserve.replica import Request
    from otel_llm.scheduling.polyserve.settings import PolyServeSettings


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


class Member(Generic[ReplicaT]):
    """A replica in a tier, or in the idle pool if `tier` is None.

    `counts`: its requests by tier, without late ones; `life`: the expected life of all; `due`: the due times of the
    decodes that are not late.
    """

    __slots__ = ("_most_kv", "_profile", "_promised_ns", "_settings", "counts", "due", "life", "replica", "tier")

    def __init__(
        self,
        replica: ReplicaT,
        profile: IterationProfile,
        settings: PolyServeSettings,
        promised_ns: Sequence[int],
        tiers: int,
    ) -> None:
        self.replica = replica
        self.tier: int | None = None
        self.counts = [0] * tiers
        self.life = ExpectedLife()
        self.due = DueTimes()
        self._profile = profile
        self._settings = settings
        self._promised_ns = promised_ns
        margin = settings.kv_margin
        self._most_kv = profile.kv_tokens * (margin.denominator - margin.numerator) // margin.denominator

    @property
    def is_pending(self) -> bool:
        """Tell whether it has no request of its tier any more, only those of looser ones."""
        return self.tier is not None and not self.counts[self.tier]

    def tightest(self) -> int | None:
        """Return the tightest tier of the requests here that are not late."""
        return next((tier for tier, count in enumerate(self.counts) if count), None)

    def first_in_time(self, request: Request, bound_ns: int, output: int, now_ns: int) -> int | None:
        """Return the iteration of the first token that a request would have here, None if it fails a check.

        The checks are TTFT, the second token, and `lives`, with `bound_ns` an iteration and `output` tokens expected.
        """
        replica = self.replica
        if not self._room(request, bound_ns):
            return None
        prediction = self._predict(now_ns, bound_ns)
        if prediction is None:
            return None
        context = request.context
        first_ns = prediction.add(0 if request.ready else context, 0, context)
        if first_ns is None or (first_ns > request.due_ns and not request.ready):
            return None
        profile = self._profile
        second_ns = profile.iteration_ns(prediction.decodes, prediction.kv) + profile.step_overhead_ns
        if first_ns + second_ns > request.due_ns + self._promised_ns[request.tier]:
            return None
        first = replica.iterations + prediction.parts // UNIT
        return first if self.lives(request, bound_ns, output, first) else None

    def lives(self, request: Request, bound_ns: int, output: int, first: int) -> bool:
        """Tell whether iterations stay within `bound_ns` and KV within its margin, until the request is over.

        The KV is the largest that is expected while all requests grow to the mean output of their tiers (section 4.5).
        A late request may fill both only to `late_share`, so that it takes no place from those that are in time.
        """
        replica, profile = self.replica, self._profile
        context = request.context
        most_kv = self._most_kv
        if request.late:
            share = self._settings.late_share
            most_kv = most_kv * share.numerator // share.denominator
            bound_ns = bound_ns * share.numerator // share.denominator
        if not self._room(request, bound_ns):
            return False
        peak = self.life.peak_kv(replica.tokens + context, replica.iterations, context, first, output)
        if peak > most_kv:
            return False
        return profile.iteration_ns(replica.requests + 1, peak) + profile.step_overhead_ns <= bound_ns

    def _room(self, request: Request, bound_ns: int) -> bool:
        """Tell whether the KV of now alone keeps the bounds: the quick part of `lives`."""
        replica, profile = self.replica, self._profile
        requests, kv = replica.requests + 1, replica.tokens + request.context
        return (
            kv <= self._most_kv
            and requests <= profile.max_batch
            and profile.iteration_ns(requests, kv) + profile.step_overhead_ns <= bound_ns
        )

    def _predict(self, now_ns: int, bound_ns: int) -> PrefillTime | None:
        """Return the prediction of the prefills that are ahead of a new request; None if one is never complete."""
        replica, profile = self.replica, self._profile
        decodes, kv, iteration, begin_ns = replica.decodes, replica.decode_context, replica.iterations, now_ns
        if replica.end_ns is not None:
            begin_ns = replica.end_ns
            iteration += 1
            kv += decodes
        slack_ns = None
        if decodes:
            bare_ns = profile.iteration_ns(decodes, kv) + profile.step_overhead_ns
            due_ns = self.due.earliest_ns(iteration, begin_ns + bare_ns)
            slack_ns = None if due_ns is None else due_ns - begin_ns
        prediction = PrefillTime(profile, self._settings, begin_ns, decodes, kv, bound_ns, slack_ns)
        for ahead, remaining, prior in replica.prefills():
            if ahead.late and remaining == ahead.context:
                break  # the engine starts late requests after all others
            done_ns = prediction.add(remaining, prior, ahead.context)
            if done_ns is None:
                return None
            if not ahead.late:
                prediction.promise(ahead.due_ns + self._promised_ns[ahead.tier] - done_ns)
        return prediction
