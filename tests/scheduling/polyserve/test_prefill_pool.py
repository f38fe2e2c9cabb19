"""The prefill replicas of a disaggregated fleet, worked by hand: an iteration lasts 100 + 2 chunk, the TPOT is 200."""

from __future__ import annotations

from dataclasses import replace

from support.scheduling.replicas import FlatProfile, StandIn, Wanted

from otel_llm.scheduling.polyserve.prefill_pool import PrefillPool
from otel_llm.scheduling.polyserve.settings import PolyServeSettings

DEFAULT = PolyServeSettings()
UNLIMITED = replace(DEFAULT, unlimited=True)
Pool = PrefillPool[Wanted, StandIn]


def pool_of(count: int, settings: PolyServeSettings = DEFAULT) -> tuple[Pool, list[StandIn]]:
    replicas = [StandIn(number) for number in range(count)]

    def grow() -> StandIn:
        replicas.append(StandIn(len(replicas)))
        return replicas[-1]

    return PrefillPool(settings, FlatProfile(), [200], replicas[:], grow), replicas


def put(pool: Pool, request: Wanted, now_ns: int = 0) -> int | None:
    replica = pool.place(request, now_ns)
    if replica is None:
        return None
    replica.add(request)
    replica.queue.sort(key=lambda one: (one.request.late, one.request.due_ns))
    return replica.number


def kept(pool: Pool, request: Wanted) -> int | None:
    """Place a request; return the number of its replica, None if its promise is not kept there."""
    number = put(pool, request)
    return None if request.late else number


def test_a_prefill_is_aimed_a_tpot_before_its_first_token_is_due() -> None:
    # Alone 120. It waits for a replica that is free at 80 at the latest.
    for end_ns, due_ns, placed in ((None, 320, 0), (80, 400, 0), (81, 400, None), (81, 250, 0), (131, 250, None)):
        pool, (replica,) = pool_of(1)
        replica.end_ns = end_ns
        assert kept(pool, Wanted(1, 0, 10, due_ns)) == placed, "250 - 200 is too early for any replica: 250 counts"


def test_those_that_are_overtaken_stay_in_time() -> None:
    # 50 tokens, then 100: the second batch ends at 300 + 200.
    for due_ns, placed in ((500, 0), (499, None)):
        pool, _ = pool_of(1)
        put(pool, Wanted(1, 0, 100, due_ns))
        assert put(pool, Wanted(2, 0, 50, 450)) == placed
    pool, _ = pool_of(1)
    put(pool, Wanted(1, 0, 100, 400))
    assert put(pool, Wanted(2, 0, 50, 700)) == 0, "it is behind the first, which has no worse time"


def test_a_started_prefill_is_not_overtaken() -> None:
    for remaining, placed in ((100, 0), (60, 0)):
        pool, (replica,) = pool_of(1)
        put(pool, Wanted(1, 0, 100, 9000))
        replica.queue[0] = replica.queue[0]._replace(remaining=remaining, prior=100 - remaining)
        # Overtaking 100 tokens it completes at 200; behind 60 started ones at 100 + 120 + 100 + 100.
        assert put(pool, Wanted(2, 0, 50, 400 if remaining == 100 else 620)) == placed
    pool, (replica,) = pool_of(1)
    put(pool, Wanted(1, 0, 100, 9000))
    replica.queue[0] = replica.queue[0]._replace(remaining=60, prior=40)
    assert put(pool, Wanted(2, 0, 50, 619)) is None


def test_a_fixed_pool_is_spread_and_one_that_grows_is_packed() -> None:
    for settings, chosen in ((DEFAULT, 1), (UNLIMITED, 0), (replace(UNLIMITED, load_gradient=False), 1)):
        pool, _ = pool_of(2, settings)
        assert put(pool, Wanted(1, 0, 10, 9000)) == 0
        assert put(pool, Wanted(2, 0, 10, 9000)) == chosen


def test_an_unlimited_pool_grows() -> None:
    for settings, placed in ((DEFAULT, None), (UNLIMITED, 1)):
        pool, _ = pool_of(1, settings)
        put(pool, Wanted(1, 0, 100, 600))
        assert put(pool, Wanted(2, 0, 100, 600)) == placed  # 500 or more behind the first


def test_kv_keeps_its_margin() -> None:
    for context, placed in ((9000, 0), (9001, None)):
        pool, _ = pool_of(1)
        assert kept(pool, Wanted(1, 0, context, 99_999)) == placed


def test_one_waits_for_an_end_and_a_late_one_for_an_empty_replica() -> None:
    pool, (replica,) = pool_of(1)
    first, second, third = Wanted(1, 0, 100, 400), Wanted(2, 0, 100, 600), Wanted(3, 0, 100, 299)
    assert put(pool, first) == 0
    assert [put(pool, one) for one in (second, third)] == [None, None]
    assert (second.late, third.late, pool.holds) == (False, True, 2)
    assert list(pool.retry(0)) == []
    for now_ns, done, begun in ((50, first, second), (350, second, third)):
        replica.drop(done)
        pool.ended(replica)
        for request, chosen in pool.retry(now_ns):
            chosen.add(request)
        assert [one.request for one in replica.queue] == [begun]
    assert pool.holds == 0


def test_one_that_waited_too_long_is_late() -> None:
    pool, (replica,) = pool_of(1)
    first, second = Wanted(1, 0, 100, 400), Wanted(2, 0, 100, 600)
    put(pool, first)
    put(pool, second)
    replica.drop(first)
    pool.ended(replica)
    assert [request.number for request, _ in pool.retry(301)] == [2]
    assert second.late


def test_the_budget_is_a_batch() -> None:
    pool, (replica,) = pool_of(1)
    put(pool, Wanted(1, 0, 150, 9000))
    assert pool.budget(replica, 0) == 150
    put(pool, Wanted(2, 0, 10, 8000))
    assert pool.budget(replica, 0) == 100
