"""Where PolyServe sends a request: each check and each mechanism, worked by hand.

An iteration lasts 100 + KV + 2 chunk, a batch has 100 tokens; TPOTs are 400 and 2000. Expected ends are rounded up
to 64 iterations. So a request of c tokens has a KV of c + 64 at its end, less the iterations of its prefill.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from support.scheduling.replicas import FlatProfile, StandIn, Wanted

from otel_llm.scheduling.polyserve.policy import PolyServe
from otel_llm.scheduling.polyserve.settings import PolyServeSettings

TIGHT, LOOSE = 0, 1
FAR = 99_999
ONE_AT_A_TIME = FlatProfile(max_batch=1)
DEFAULT = PolyServeSettings()
Policy = PolyServe[Wanted, StandIn]


def fleet(
    count: int,
    settings: PolyServeSettings = DEFAULT,
    profile: FlatProfile | None = None,
    tpots_ns: Sequence[int] = (400, 2000),
) -> tuple[Policy, list[StandIn]]:
    replicas = [StandIn(number) for number in range(count)]

    def grow() -> StandIn:
        replicas.append(StandIn(len(replicas)))
        return replicas[-1]

    return PolyServe(settings, profile or FlatProfile(), tpots_ns, replicas[:], 10, grow), replicas


def put(policy: Policy, request: Wanted, now_ns: int = 0, *, decodes: bool = False) -> int | None:
    """Place a request, with `decodes` let it have its first token; return the number of its replica."""
    replica = policy.place(request, now_ns)
    if replica is None:
        return None
    replica.add(request)
    if decodes:
        replica.decode(request)
        policy.completed(request, replica, 1)
    return replica.number


def kept(policy: Policy, request: Wanted, now_ns: int = 0) -> int | None:
    """Place a request; return the number of its replica, None if its promise is not kept there."""
    number = put(policy, request, now_ns)
    return None if request.late else number


def end(policy: Policy, replica: StandIn, request: Wanted, output: int = 10) -> None:
    replica.drop(request)
    policy.ended(request, replica, output)


def retried(policy: Policy, now_ns: int) -> list[tuple[int, int]]:
    found = []
    for request, replica in policy.retry(now_ns):
        replica.add(request)
        found.append((request.number, replica.number))
    return found


# The three checks.


def test_the_first_token_must_be_in_time() -> None:
    # 10 tokens: 120 from an idle replica; 60 more if it runs until 60.
    for end_ns, due_ns, placed in ((None, 120, 0), (60, 180, 0), (60, 179, None)):
        policy, (replica,) = fleet(1)
        replica.end_ns = end_ns
        assert kept(policy, Wanted(1, LOOSE, 10, due_ns)) == placed


def test_chunks_ahead_count() -> None:
    # 90 and 50 tokens: 280 of work in two iterations, each 100 + 90 without a chunk.
    for due_ns, placed in ((660, 0), (659, None)):
        policy, _ = fleet(1)
        put(policy, Wanted(1, LOOSE, 90, 9000))
        assert kept(policy, Wanted(2, LOOSE, 50, due_ns)) == placed


def test_decodes_beside_it_count() -> None:
    # 150 tokens run until the end, 151 then; 5 tokens more take 100 + 151 + 10.
    for end_ns, placed in ((439, 0), (440, None)):
        policy, (replica,) = fleet(1)
        put(policy, Wanted(1, TIGHT, 150, FAR), decodes=True)
        replica.end_ns = end_ns
        assert kept(policy, Wanted(2, TIGHT, 5, 700)) == placed


def test_the_second_token_must_be_in_time() -> None:
    # It is implied for a new request, but not for a ready one, whose first token was long ago.
    # It has its context; the second token is due at 0 + 400 and takes 100 + 50.
    for end_ns, placed in ((250, 0), (251, None)):
        policy, (replica,) = fleet(1)
        replica.end_ns = end_ns
        assert kept(policy, Wanted(1, TIGHT, 50, 0, ready=True)) == placed


def test_iterations_stay_within_the_tpot_for_life() -> None:
    for context, placed in ((238, 0), (239, None)):
        policy, _ = fleet(1)
        assert kept(policy, Wanted(1, TIGHT, context, FAR)) == placed  # 100 + 238 + 62: two iterations before the last
    for context, placed in ((73, 0), (74, None)):
        policy, _ = fleet(1)
        put(policy, Wanted(1, TIGHT, 100, FAR), decodes=True)
        assert kept(policy, Wanted(2, TIGHT, context, FAR)) == placed  # 100 + 100 + 63 + 73 + 64


def test_the_expected_output_is_the_mean_of_the_tier() -> None:
    policy, _ = fleet(1)
    policy.count(Wanted(8, TIGHT), 25_737)  # (200 x 10 + 25,737) / 201 = 138: 192 iterations
    assert kept(policy, Wanted(1, TIGHT, 110, FAR)) is None
    policy, _ = fleet(1)
    policy.count(Wanted(8, TIGHT), 25_737)
    assert kept(policy, Wanted(1, TIGHT, 109, FAR)) == 0  # 100 + 109 + 191


def test_kv_keeps_its_margin() -> None:
    for margin, context, placed in ((Fraction(1, 10), 844, 0), (Fraction(1, 10), 845, None), (Fraction(0), 845, 0)):
        policy, _ = fleet(1, replace(DEFAULT, kv_margin=margin), FlatProfile(kv_tokens=1000))
        assert kept(policy, Wanted(1, LOOSE, context, FAR)) == placed  # 844 + 56 of 900


def test_a_batch_is_not_overfull() -> None:
    policy, _ = fleet(1, profile=FlatProfile(max_batch=2))
    assert [put(policy, Wanted(number, LOOSE, 1, FAR)) for number in range(3)] == [0, 0, None]


# Mechanisms.


def test_the_fullest_that_can_meet_it() -> None:
    for gradient, chosen in ((True, 1), (False, 0)):
        policy, _ = fleet(3, replace(DEFAULT, load_gradient=gradient))
        assert put(policy, Wanted(1, LOOSE, 700, FAR), decodes=True) == 0
        assert put(policy, Wanted(2, LOOSE, 1100, FAR), decodes=True) == 1  # 100 + 700 + 1100 + 128 is above 2000
        assert put(policy, Wanted(3, LOOSE, 50, FAR)) == chosen
        assert put(policy, Wanted(4, LOOSE, 700, FAR)) == 0, "the fullest cannot meet it"


def test_a_looser_request_goes_to_a_tighter_tier_before_an_idle_replica() -> None:
    for lazy, chosen in ((True, 0), (False, 1)):
        policy, _ = fleet(2, replace(DEFAULT, lazy_promotion=lazy))
        put(policy, Wanted(1, TIGHT, 5, FAR), decodes=True)
        assert put(policy, Wanted(2, LOOSE, 5, FAR)) == chosen


def test_it_keeps_the_tpot_of_the_tighter_tier() -> None:
    policy, _ = fleet(1)
    put(policy, Wanted(1, TIGHT, 100, FAR), decodes=True)
    assert put(policy, Wanted(2, LOOSE, 74, FAR)) is None  # as above, 401


def test_its_own_tier_is_first_and_the_nearest_tighter_one_next() -> None:
    policy, _ = fleet(3, tpots_ns=(400, 1000, 2000))
    put(policy, Wanted(1, 0, 5, FAR), decodes=True)
    assert put(policy, Wanted(2, 1, 300, FAR), decodes=True) == 1
    assert put(policy, Wanted(3, 2, 5, FAR), decodes=True) == 1
    assert put(policy, Wanted(4, 2, 900, FAR), decodes=True) == 2
    assert put(policy, Wanted(5, 2, 5, FAR), decodes=True) == 2


def test_a_tighter_request_never_goes_to_a_looser_tier() -> None:
    policy, _ = fleet(1)
    put(policy, Wanted(1, LOOSE, 5, FAR), decodes=True)
    assert put(policy, Wanted(2, TIGHT, 5, FAR)) is None


def pending() -> tuple[Policy, list[StandIn]]:
    """Return two replicas: 0 is of the tight tier, and has only a loose request."""
    policy, replicas = fleet(2)
    first = Wanted(1, TIGHT, 5, FAR)
    put(policy, first, decodes=True)
    assert put(policy, Wanted(2, LOOSE, 5, FAR), decodes=True) == 0
    end(policy, replicas[0], first)
    return policy, replicas


def test_a_pending_replica_joins_the_tier_of_what_it_runs() -> None:
    policy, _ = pending()
    assert put(policy, Wanted(3, LOOSE, 300, FAR), decodes=True) == 0
    assert put(policy, Wanted(4, TIGHT, 5, FAR), decodes=True) == 1


def test_a_pending_replica_takes_no_promoted_requests_but_joins_their_tier() -> None:
    policy, _ = pending()
    assert put(policy, Wanted(3, LOOSE, 5, FAR), decodes=True) == 0
    assert put(policy, Wanted(4, TIGHT, 5, FAR), decodes=True) == 1


def test_a_pending_replica_joins_its_own_tier_again() -> None:
    policy, _ = pending()
    assert put(policy, Wanted(3, TIGHT, 5, FAR), decodes=True) == 0
    assert put(policy, Wanted(4, LOOSE, 300, FAR), decodes=True) == 1


def test_an_empty_replica_returns_to_the_pool() -> None:
    policy, (replica,) = fleet(1)
    request = Wanted(1, LOOSE, 5, FAR)
    put(policy, request, decodes=True)
    end(policy, replica, request)
    assert put(policy, Wanted(2, TIGHT, 5, FAR)) == 0


def test_an_unlimited_pool_grows() -> None:
    policy, replicas = fleet(1, replace(DEFAULT, unlimited=True), ONE_AT_A_TIME)
    assert put(policy, Wanted(0, LOOSE, 10, 100)) == 0
    assert len(replicas) == 1, "120 is too late on any"
    assert [put(policy, Wanted(number, LOOSE, 5, FAR)) for number in (1, 2)] == [1, 2]


# Waiting.


def test_a_request_waits_and_is_tried_again_after_an_end() -> None:
    policy, (replica,) = fleet(1, profile=ONE_AT_A_TIME)
    first = Wanted(1, LOOSE, 10, FAR)
    put(policy, first, decodes=True)
    assert [put(policy, Wanted(number, LOOSE, 10, due)) for number, due in ((2, 5000), (3, 3000))] == [None, None]
    assert retried(policy, 10) == []
    assert policy.holds == 2
    end(policy, replica, first)
    assert retried(policy, 20) == [(3, 0)], "it can wait the least"
    assert retried(policy, 30) == []
    assert policy.holds == 1


def test_a_request_is_tried_again_after_a_prefill() -> None:
    policy, (replica,) = fleet(1)
    first = Wanted(1, LOOSE, 90, 9000)
    put(policy, first)
    assert put(policy, Wanted(2, LOOSE, 50, 600)) is None
    replica.decode(first)
    policy.completed(first, replica, 1)
    assert retried(policy, 280) == [(2, 0)]  # 280 + 100 + 90 + 2 x 50 = 570


def test_one_that_no_idle_replica_could_make_goes_where_there_is_room_for_others_too() -> None:
    for share, context, placed in ((Fraction(3, 4), 1274, 0), (Fraction(3, 4), 1275, None), (Fraction(1), 1275, 0)):
        policy, _ = fleet(1, replace(DEFAULT, late_share=share))
        put(policy, Wanted(1, LOOSE, context, FAR), decodes=True)
        request = Wanted(2, LOOSE, 10, 119)  # alone 120
        assert put(policy, request) == placed  # 100 + 1274 + 52 + 10 + 64 = 1500, 3/4 of 2000
        assert request.late


def test_late_requests_are_after_all_others() -> None:
    policy, (replica,) = fleet(1, profile=ONE_AT_A_TIME)
    first, second = Wanted(1, LOOSE, 10, FAR), Wanted(2, LOOSE, 10, FAR)
    put(policy, first, decodes=True)
    assert [put(policy, one) for one in (second, Wanted(3, LOOSE, 10, 1))] == [None, None]
    end(policy, replica, first)
    assert retried(policy, 0) == [(2, 0)]
    end(policy, replica, second)
    assert retried(policy, 0) == [(3, 0)]


def test_late_requests_wait_while_one_in_time_waits() -> None:
    policy, (replica,) = fleet(1)
    first, second = Wanted(1, TIGHT, 5, FAR), Wanted(2, TIGHT, 5, FAR)
    put(policy, first, decodes=True)
    put(policy, second, decodes=True)
    assert put(policy, Wanted(3, TIGHT, 238, FAR)) is None  # it would have room alone
    assert put(policy, Wanted(4, LOOSE, 5, 1)) is None
    end(policy, replica, second)
    assert retried(policy, 0) == []  # the late one has room: 100 + 2 x 69 is below 300
    assert put(policy, Wanted(5, LOOSE, 5, 1)) is None
    end(policy, replica, first)
    assert retried(policy, 0) == [(3, 0)]


def test_one_that_an_idle_replica_refuses_does_not_wait_on() -> None:
    policy, (replica,) = fleet(1)
    first, second = Wanted(1, LOOSE, 10, FAR), Wanted(2, TIGHT, 300, FAR)  # 100 + 300 + 61 is above 400
    put(policy, first, decodes=True)
    assert put(policy, second) is None
    assert not second.late
    end(policy, replica, first)
    assert retried(policy, 0) == [(2, 0)]
    assert second.late


def test_one_that_waited_too_long_is_late() -> None:
    policy, (replica,) = fleet(1, profile=ONE_AT_A_TIME)
    first, second = Wanted(1, LOOSE, 10, FAR), Wanted(2, LOOSE, 10, 1000)
    put(policy, first, decodes=True)
    put(policy, second)
    end(policy, replica, first)
    assert retried(policy, 881) == [(2, 0)]  # 881 + 120
    assert second.late


def test_a_preempted_decode_sets_no_budget() -> None:
    policy, (replica,) = fleet(1)
    first = Wanted(1, TIGHT, 50, 500)
    put(policy, first, decodes=True)
    replica.add(Wanted(2, LOOSE, 500, FAR))
    assert policy.budget(replica, 600) == 45  # its second token is due at 900: 4/5 of 300 is 150 + 2 x 45
    policy.preempted(first, replica)
    assert policy.budget(replica, 600) == 99
