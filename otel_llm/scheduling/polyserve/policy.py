"""PolyServe (section 4): where each request goes, and when it waits."""

from __future__ import annotations

from bisect import insort
from collections import deque
from typing import TYPE_CHECKING, Generic

from otel_llm.scheduling.output_lengths import OutputLengths
from otel_llm.scheduling.polyserve.batch_budget import BatchBudget
from otel_llm.scheduling.polyserve.member import Member
from otel_llm.scheduling.polyserve.prefill_time import alone_ns
from otel_llm.scheduling.polyserve.replica import ReplicaT, RequestT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from otel_llm.scheduling.iteration_profile import IterationProfile
    from otel_llm.scheduling.polyserve.settings import PolyServeSettings


class PolyServe(Generic[RequestT, ReplicaT]):
    """The policy of a colocated fleet, and of the decode replicas of a disaggregated one.

    The caller adds a request to the replica that it is given before it calls again, and calls `completed`, `preempted`
    and `ended` when that happens. After these it calls `retry` if `holds` is above 0. Single-threaded.

    Args:
        tpots_ns: the TPOT of each promise; `Request.tier` is a position in it. Tiers are the distinct ones.
        expected_output: the mean output of a tier before anything of it was over, in tokens.
        grow: returns a new idle replica, if the settings are `unlimited`.
    """

    def __init__(
        self,
        settings: PolyServeSettings,
        profile: IterationProfile,
        tpots_ns: Sequence[int],
        replicas: Iterable[ReplicaT],
        expected_output: int,
        grow: Callable[[], ReplicaT] | None = None,
    ) -> None:
        self._settings = settings
        self._profile = profile
        self._promised_ns = tpots_ns
        self._tpots_ns = sorted(set(tpots_ns))
        self._tier_of = [self._tpots_ns.index(tpot_ns) for tpot_ns in tpots_ns]
        self._outputs = OutputLengths(expected_output)
        self._grow = grow
        self._budgets = BatchBudget(settings, profile)
        self._members: dict[int, Member[ReplicaT]] = {}
        self._pool: list[Member[ReplicaT]] = []
        self._tiers: list[list[Member[ReplicaT]]] = [[] for _ in self._tpots_ns]
        for replica in replicas:
            self._join_pool(replica)
        self._waiting: list[tuple[int, int, RequestT]] = []
        """By the last instant at which an idle replica makes the promise, then by number."""
        self._late: deque[RequestT] = deque()
        self._changed: dict[int, Member[ReplicaT]] = {}
        """Those on which a request ended or a prefill completed since the last retry."""

    @property
    def holds(self) -> int:
        """Return the number of requests that wait for a replica."""
        return len(self._waiting) + len(self._late)

    def place(self, request: RequestT, now_ns: int) -> ReplicaT | None:
        """Return the replica of a new request, None if it waits."""
        replica = self.find(request, now_ns, others_wait=self.holds > 0)
        if replica is None:
            if request.late:
                self._late.append(request)
            else:
                insort(self._waiting, (self._latest_ns(request), request.number, request))
        return replica

    def find(self, request: RequestT, now_ns: int, *, others_wait: bool) -> ReplicaT | None:
        """Return the replica of a request, None if it has to wait: the caller holds it then, and asks again.

        It becomes late if no idle replica can keep its promise any more, and then waits while others do.
        """
        member = None if request.late else self._find(request, now_ns, None)
        if member is None:
            is_late = request.late or self._latest_ns(request) < now_ns or _has_empty(self._pool)
            if not is_late:
                return None
            request.late = True
            member = None if others_wait else self._find_late(request, None)
        return None if member is None else member.replica

    def retry(self, now_ns: int) -> Iterator[tuple[RequestT, ReplicaT]]:
        """Yield the waiting requests that have a replica now, those first that could wait the least.

        Only replicas that changed are looked at: on another one a request was refused, and no request there is over.
        """
        changed = self._changed
        if not changed:
            return
        self._changed = {}
        kept = []
        for entry in self._waiting:
            latest_ns, _, request = entry
            member = self._find(request, now_ns, changed) if latest_ns >= now_ns else None
            if member is not None:
                yield request, member.replica
            elif latest_ns < now_ns or _has_empty(changed.values()):
                request.late = True
                self._late.append(request)
            else:
                kept.append(entry)
        self._waiting = kept
        while self._late and not self._waiting and (member := self._find_late(self._late[0], changed)) is not None:
            yield self._late.popleft(), member.replica

    def completed(self, request: RequestT, replica: ReplicaT, tokens: int) -> None:
        """Note that a request, with so many tokens so far, decodes from the next iteration on."""
        member = self._members[replica.number]
        self._changed[replica.number] = member
        if not request.late:
            tpot_ns = self._promised_ns[request.tier]
            member.due.add(request.number, tpot_ns, request.due_ns + tokens * tpot_ns, replica.iterations)

    def preempted(self, request: RequestT, replica: ReplicaT) -> None:
        """Note that a decode lost its KV and waits again."""
        self._members[replica.number].due.remove(request.number)

    def ended(self, request: RequestT, replica: ReplicaT, output: int | None) -> None:
        """Note that a request is over, with so many tokens; None: it was given up, and its length says nothing."""
        member = self._members[replica.number]
        self._changed[replica.number] = member
        tier = self._tier_of[request.tier]
        if output is not None:
            self.count(request, output)
        member.due.remove(request.number)
        member.life.remove(request.number)
        if not request.late:
            member.counts[tier] -= 1
            if not any(member.counts):
                self._leave(member)

    def count(self, request: RequestT, output: int) -> None:
        """Count the output of a request that is over; one that never came here ended at its first token.

        An empty one teaches nothing.
        """
        if output:
            self._outputs.observe(self._tier_of[request.tier], output)

    def budget(self, replica: ReplicaT, now_ns: int) -> int:
        """Return the prefill tokens of the batch that a replica forms now (section 4.7; `slack` is ours)."""
        member = self._members[replica.number]
        return self._budgets.of(replica, member.due, self._bound_ns(member), now_ns)

    def _find(
        self, request: RequestT, now_ns: int, among: dict[int, Member[ReplicaT]] | None
    ) -> Member[ReplicaT] | None:
        """Return the member that a request joins, None if none keeps its promise; only those `among` if given."""
        tier = self._tier_of[request.tier]
        output = self._outputs.mean(tier)
        for of, candidates in self._candidates(tier, among):
            bound_ns = self._tpots_ns[of]
            for member in candidates:
                first = member.first_in_time(request, bound_ns, output, now_ns)
                if first is not None:
                    self._assign(member, of, request, tier, first)
                    return member
        return None

    def _candidates(
        self, tier: int, among: dict[int, Member[ReplicaT]] | None
    ) -> Iterator[tuple[int, Sequence[Member[ReplicaT]]]]:
        """Yield members to try, with the tier that they are in or join: own, tighter ones, pending ones, idle pool."""
        for of in range(tier, -1 if self._settings.lazy_promotion else tier - 1, -1):
            members = [one for one in self._of(of, among) if not one.is_pending]
            members.sort(key=_fullest if self._settings.load_gradient else _emptiest)
            yield of, members
        pending = [
            one
            for of in range(tier + 1)
            for one in self._of(of, among)
            if one.is_pending and tier in (of, one.tightest())
        ]
        pending.sort(key=_fullest)
        yield tier, pending
        pool = self._pool if among is None else [one for one in self._pool if one.replica.number in among]
        yield tier, sorted(pool, key=_emptiest)
        # If an idle one was refused, a new one would be too.
        if self._settings.unlimited and self._grow is not None and not _has_empty(self._pool):
            yield tier, [self._join_pool(self._grow())]

    def _of(self, tier: int, among: dict[int, Member[ReplicaT]] | None) -> Sequence[Member[ReplicaT]]:
        return self._tiers[tier] if among is None else [one for one in among.values() if one.tier == tier]

    def _find_late(self, request: RequestT, among: dict[int, Member[ReplicaT]] | None) -> Member[ReplicaT] | None:
        """Return the fullest member if the bounds hold with a late request, else an empty one."""
        output = self._outputs.mean(self._tier_of[request.tier])
        members = list(self._members.values() if among is None else among.values())
        for member in sorted(members, key=_fullest):
            first = member.replica.iterations
            if not member.replica.requests or member.lives(request, self._bound_ns(member), output, first):
                member.life.add(request.number, request.context, first, output)
                return member
        return None

    def _bound_ns(self, member: Member[ReplicaT]) -> int:
        """Return how long an iteration of a member may last: the TPOT of its tier; in the pool, the loosest."""
        return self._tpots_ns[-1 if member.tier is None else member.tier]

    def _latest_ns(self, request: RequestT) -> int:
        """Return the last instant at which an idle replica still keeps the promise of the next token."""
        profile, context = self._profile, request.context
        if request.ready:
            second_ns = profile.iteration_ns(1, context) + profile.step_overhead_ns
            return request.due_ns + self._promised_ns[request.tier] - second_ns
        return request.due_ns - alone_ns(profile, self._settings, context)

    def _assign(self, member: Member[ReplicaT], of: int, request: RequestT, tier: int, first: int) -> None:
        if member.tier != of:
            (self._pool if member.tier is None else self._tiers[member.tier]).remove(member)
            member.tier = of
            self._tiers[of].append(member)
        member.counts[tier] += 1
        member.life.add(request.number, request.context, first, self._outputs.mean(tier))

    def _leave(self, member: Member[ReplicaT]) -> None:
        if member.tier is not None:
            self._tiers[member.tier].remove(member)
            member.tier = None
            self._pool.append(member)

    def _join_pool(self, replica: ReplicaT) -> Member[ReplicaT]:
        member = Member(replica, self._profile, self._settings, self._promised_ns, len(self._tpots_ns))
        self._members[replica.number] = member
        self._pool.append(member)
        return member


def _has_empty(members: Iterable[Member[ReplicaT]]) -> bool:
    """Tell whether one is idle: a request that it refuses has no use in waiting."""
    return any(not one.replica.requests for one in members)


def _fullest(member: Member[ReplicaT]) -> tuple[int, int, int]:
    """Return the key that sorts the fullest first, by KV, then requests; of equal ones the lowest number."""
    replica = member.replica
    return -replica.tokens, -replica.requests, replica.number


def _emptiest(member: Member[ReplicaT]) -> tuple[int, int, int]:
    replica = member.replica
    return replica.tokens, replica.requests, replica.number
