"""Cases of the simulated engine worked by hand: the time of every token, to the nanosecond.

An iteration of B decodes lasts 100 + 10 B + KV + 2 chunk + prior, and 5 more; a request becomes visible 7 after its
arrival. The sums stand beside the times.
"""

from __future__ import annotations

from fractions import Fraction
from random import Random

from support.scheduling.simulated import HandProfile, Scripted, run_of, times_of

from otel_llm.scheduling.simulator.engine import Fleet, Transfer
from otel_llm.scheduling.simulator.placing import PLACEMENTS
from otel_llm.scheduling.simulator.simulated_request import Run


def test_one_request() -> None:
    run = run_of([(0, 10, 3)])
    assert times_of(run) == [
        [
            132,  # 7 + 100 + 2 x 10 + 5
            258,  # + 100 + 10 + 11 + 5: its context is 10 + 1
            385,  # + 100 + 10 + 12 + 5
        ]
    ]
    (request,) = run.requests
    assert request.end_ns == run.end_ns == 385
    assert request.runs == [Run(0, 0, 3)]


def test_two_that_share_a_batch() -> None:
    assert times_of(run_of([(0, 10, 3), (0, 20, 2)])) == [
        [
            172,  # 7 + 100 + 2 x 30 + 5
            329,  # + 100 + 20 + (11 + 21) + 5
            456,  # + 100 + 10 + 12 + 5: alone again
        ],
        [172, 329],
    ]


def test_a_prefill_in_chunks_behind_a_decode() -> None:
    assert times_of(run_of([(0, 10, 4), (130, 30, 2)], HandProfile(max_batched_tokens=16))) == [
        [
            132,
            258,  # the second request becomes visible at 137, within this iteration
            415,  # + 100 + 10 + 12 + 2 x 15 + 5: the decode takes one of the 16 tokens
            588,  # + 100 + 10 + 13 + 2 x 15 + 15 + 5: 15 tokens prior
        ],
        [588, 734],  # + 100 + 10 + 31 + 5
    ]


def test_a_budget_that_cuts_prompts() -> None:
    run = run_of([(0, 10, 1), (0, 30, 2), (0, 12, 1)], HandProfile(max_batched_tokens=25))
    assert times_of(run) == [
        [162],  # 7 + 100 + 2 x (10 + 15) + 5
        [
            326,  # + 100 + 2 x (15 + 10) + 9 + 5: prior is floor((15 x 15 + 10 x 0) / 25)
            486,  # + 100 + 10 + 31 + 2 x 2 + 10 + 5
        ],
        [486],
    ]


def test_a_budget_of_zero_is_no_prefill() -> None:
    run = run_of([(0, 2, 4), (0, 2, 4), (0, 1, 1)], HandProfile(max_batched_tokens=2))
    assert times_of(run) == [
        [
            116,  # 7 + 100 + 2 x 2 + 5
            236,  # + 100 + 10 + 3 + 2 x 1 + 5
            358,  # + 100 + 10 + 4 + 2 x 1 + 1 + 5
            491,  # + 100 + 20 + (5 + 3) + 5: two decodes leave nothing of 2 tokens
        ],
        [358, 491, 612, 732],
        [612],  # + 100 + 10 + 4 + 2 x 1 + 5
    ]


def test_a_request_waits_for_kv_and_stops_those_behind_it() -> None:
    assert times_of(run_of([(0, 10, 2), (0, 20, 1), (0, 2, 1)], HandProfile(kv_tokens=30))) == [
        [132, 258],  # holds 11 of 30, then 12
        [407],  # needs 21; 258 + 100 + 2 x (20 + 2) + 5
        [407],  # would fit beside the first, but is behind the second
    ]


def test_a_batch_is_full() -> None:
    assert times_of(run_of([(0, 10, 2), (0, 5, 1)], HandProfile(max_batch=1))) == [[132, 258], [373]]


def test_the_latest_start_is_preempted_where_kv_is_full() -> None:
    run = run_of([(0, 10, 5), (0, 18, 2)], HandProfile(kv_tokens=30))
    assert times_of(run) == [
        [
            168,  # 7 + 100 + 2 x 28 + 5: 11 + 19 tokens are held, which is all
            294,  # the second is preempted; + 100 + 10 + 11 + 5
            421,
            549,
            678,
        ],
        [168, 821],  # a prefill of 18 + 1 tokens gives the second token: 678 + 100 + 2 x 19 + 5
    ]
    assert [request.preemptions for request in run.requests] == [0, 1]
    assert run.requests[1].runs == [Run(0, 0, 1), Run(0, 5, 1)]


def test_a_preempted_prefill_begins_again() -> None:
    run = run_of([(0, 10, 8), (0, 28, 1)], HandProfile(kv_tokens=40, max_batched_tokens=12))
    assert times_of(run) == [
        [136, 262, 389, 517, 646, 776, 907, 1039],  # 136: 7 + 100 + 2 x (10 + 2) + 5
        [1446],  # in chunks of 12, 12 and 4 from the beginning: 1039 + 129 + 141 + 137
    ]
    assert run.requests[1].preemptions == run.instances[0].preemptions == 1


def test_of_several_preempted_the_earliest_start_is_first_again() -> None:
    run = run_of([(0, 1, 4)] * 6, HandProfile(kv_tokens=12))
    assert times_of(run) == [
        [
            124,  # 7 + 100 + 2 x 6 + 5; six times 2 tokens are held, which is all
            277,  # the sixth, then the fifth is preempted; + 100 + 40 + 8 + 5
            421,  # the fourth is; + 100 + 30 + 9 + 5
            554,  # the third is; + 100 + 20 + 8 + 5
        ],
        [124, 277, 421, 554],
        [124, 277, 421, 677],  # 5, 4 and 3 of 12 tokens for the third, fourth, fifth: + 100 + 2 x (4 + 3 + 2) + 5
        [124, 277, 677, 813],  # + 100 + 20 + 7 + 2 x 2 + 5
        [124, 677, 813, 945],  # + 100 + 20 + 7 + 5
        [124, 813, 945, 1064],  # + 100 + 10 + 4 + 5
    ]
    assert [request.preemptions for request in run.requests] == [0, 0, 1, 1, 1, 1]


def test_disaggregated_with_a_transfer() -> None:
    fleet = Fleet(2, prefill=1, transfer=Transfer(50, Fraction("1.25")))
    run = run_of([(0, 10, 3), (0, 4, 1)], fleet=fleet)
    assert times_of(run) == [
        [
            140,  # 7 + 100 + 2 x 14 + 5 on the prefill instance
            329,  # + 50 + 13 (12.5 rounded half up) + 100 + 10 + 11 + 5 on the decode instance
            456,
        ],
        [140],  # one token never moves
    ]
    assert [request.runs for request in run.requests] == [[Run(0, 0, 1), Run(1, 0, 2)], [Run(0, 0, 1)]]


def test_a_request_preempted_in_the_decode_pool_is_prefilled_there() -> None:
    run = run_of([(0, 10, 6), (0, 16, 3)], HandProfile(kv_tokens=30), Fleet(2, prefill=1), Scripted())
    assert times_of(run) == [
        [
            164,  # 7 + 100 + 2 x 26 + 5; without a transfer both are visible to the decode pool at once
            317,  # + 100 + 20 + 28 + 5: they hold 12 + 18, which is all
            444,
            572,
            701,
            831,
        ],
        [164, 317, 972],  # 831 + 100 + 2 x 18 + 5
    ]
    assert run.requests[1].runs == [Run(0, 0, 1), Run(1, 0, 1), Run(1, 5, 1)]


def test_a_request_that_becomes_visible_exactly_at_an_end_joins_the_next_batch() -> None:
    assert times_of(run_of([(0, 10, 3), (125, 5, 2)])) == [
        [132, 268, 411],  # + 100 + 10 + 11 + 2 x 5 + 5, + 100 + 20 + 18 + 5
        [268, 411],
    ]
    assert times_of(run_of([(0, 10, 3), (126, 5, 2)])) == [
        [132, 258, 395],  # a nanosecond later, it waits for the end after it: + 100 + 10 + 12 + 2 x 5 + 5
        [395, 516],
    ]


def test_a_placement_sees_the_ends_of_its_instant() -> None:
    # The first is over at 132, when the third becomes visible: its instance is empty then.
    run = run_of([(0, 10, 1), (0, 9, 3), (125, 5, 1)], fleet=Fleet(2), placement=PLACEMENTS["least_load"](Random(0)))
    assert [request.runs[0].instance for request in run.requests] == [0, 1, 0]
    assert times_of(run)[2] == [247]  # 132 + 100 + 2 x 5 + 5


def test_of_equal_arrivals_the_lower_number_is_first() -> None:
    assert times_of(run_of([(0, 60, 1), (0, 50, 1)])) == [
        [312],  # 7 + 100 + 2 x (60 + 40) + 5
        [477],  # the last 10 tokens: + 100 + 2 x 10 + 40 + 5
    ]


def test_the_earliest_deadline_is_first_but_for_preempted_ones() -> None:
    # One runs at a time; the third is due before the second, the fourth with the second.
    run = run_of([(0, 10, 1), (0, 20, 1), (0, 30, 1), (0, 5, 1)], HandProfile(max_batch=1), due_ns=[90, 80, 70, 80])
    assert times_of(run) == [[557], [317], [172], [432]]  # 7 + 165, + 145, + 115, + 125
    # As with the first to come, but the third arrives while the second is preempted, and is due before it.
    rows = [(0, 10, 5), (0, 18, 2), (200, 18, 1)]
    run = run_of(rows, HandProfile(kv_tokens=30), due_ns=[1, 1, 0])
    assert [times[-1] for times in times_of(run)] == [678, 821, 962]  # 821 + 100 + 2 x 18 + 5


def test_a_request_that_fits_no_instance_is_dropped() -> None:
    run = run_of([(0, 10, 3), (0, 28, 3)], HandProfile(kv_tokens=30))
    assert times_of(run) == [[132, 258, 385], []]
    assert [(request.dropped, request.end_ns) for request in run.requests] == [(False, 385), (True, 7)]
    assert run.decisions == 1


def test_instances_end_at_one_instant_by_number() -> None:
    run = run_of([(0, 10, 2), (0, 10, 2), (0, 10, 2)], fleet=Fleet(3))
    assert times_of(run) == [[132, 258]] * 3
    assert [request.runs for request in run.requests] == [[Run(number, 0, 2)] for number in range(3)]
