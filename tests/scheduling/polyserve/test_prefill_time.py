"""The prediction of prefills and the budget of a batch, worked by hand.

An iteration lasts 100 + KV + 2 chunk + chunk x prior / 100; a batch has 100 tokens.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from support.scheduling.replicas import FlatProfile, LineProfile, StandIn, Wanted

from otel_llm.scheduling.polyserve.batch_budget import BatchBudget, largest_chunk
from otel_llm.scheduling.polyserve.due_times import DueTimes
from otel_llm.scheduling.polyserve.prefill_time import PrefillTime, alone_ns
from otel_llm.scheduling.polyserve.replica import Prefill
from otel_llm.scheduling.polyserve.settings import PolyServeSettings

DEFAULT = PolyServeSettings()
TPOT = PolyServeSettings(chunking="tpot")
PROFILE = LineProfile()


def test_alone_in_full_chunks() -> None:
    # 300 + 300 + 200 for 100, 100 and 50 tokens.
    assert alone_ns(FlatProfile(), DEFAULT, 250) == 800
    # With the prior tokens on average: (150 / 2 = 75) x 250 / 100 = 187.5 more; by chunk 100 x 100 and 50 x 200, 200.
    assert alone_ns(PROFILE, DEFAULT, 250) == 987


def test_a_rest_below_two_budgets_is_one_chunk() -> None:
    assert alone_ns(FlatProfile(), DEFAULT, 150) == 400  # 100 + 2 x 150
    assert alone_ns(FlatProfile(), replace(DEFAULT, dynamic_chunking=False), 150) == 500  # 300 + 200
    assert alone_ns(FlatProfile(), DEFAULT, 200) == 600


def test_prompts_share_iterations() -> None:
    prediction = PrefillTime(FlatProfile(), DEFAULT, 1000, 0, 0, None, None, joins=False)
    assert [prediction.add(30, 0, 30) for _ in range(4)] == [1160, 1220, 1280, 1440]
    # The fourth begins with the last 10 tokens of the first batch: 1300, then 100 + 2 x 20.


def test_a_prefill_takes_what_decodes_leave() -> None:
    # A decode of 100 tokens leaves 300 - 200 of an iteration, which is 50 tokens; then 49, since its KV has grown.
    for continuous, done_ns in ((True, 200 + 3 * 202), (False, 200 + 2 * 200)):
        settings = replace(TPOT, continuous_prediction=continuous)
        assert PrefillTime(FlatProfile(), settings, 0, 1, 100, 300, 40).add(100, 0, 100) == done_ns
    assert PrefillTime(FlatProfile(), TPOT, 0, 1, 100, 200, 40).add(100, 0, 100) is None


def test_slack_is_used_at_once() -> None:
    # 1000 of slack, less the 375 that stay with an iteration of 300: 4/5 of the rest hold the 180 of 90 tokens.
    assert PrefillTime(FlatProfile(), DEFAULT, 0, 1, 100, 300, 1000).add(90, 0, 90) == 380
    # Without it (375) three iterations are needed: 180 / 100, and the KV grows.
    assert PrefillTime(FlatProfile(), DEFAULT, 0, 1, 100, 300, 375).add(90, 0, 90) == 180 + 2 * 201
    # Behind a prompt whose second token is due soon, there is no slack either.
    prediction = PrefillTime(FlatProfile(), DEFAULT, 0, 0, 0, 300, None)
    assert prediction.add(50, 0, 50) == 200
    prediction.promise(375)
    assert prediction.add(50, 0, 50) == 200 + 2 * 150  # 100 of work each; an iteration without a chunk is 100 + 50


def test_a_decode_counts_from_the_completion_on() -> None:
    prediction = PrefillTime(FlatProfile(), DEFAULT, 0, 2, 300, None, None)
    prediction.add(0, 40, 40)
    assert (prediction.decodes, prediction.kv) == (3, 340)


@pytest.mark.parametrize(("allowed_ns", "chunk"), [(199, 0), (201, 0), (202, 1), (299, 49), (300, 50), (400, 99)])
def test_the_largest_chunk(allowed_ns: int, chunk: int) -> None:
    replica = StandIn(running=[Wanted(1, context=100)])
    assert largest_chunk(FlatProfile(), replica, [Prefill(Wanted(2), 500, 0)], 0, 99, allowed_ns) == chunk


def test_the_largest_chunk_where_the_length_is_no_line() -> None:
    # 30 tokens of 300 prior, 70 without: 5 a token, then 2.
    prompts = [Prefill(Wanted(2), 30, 300), Prefill(Wanted(3), 100, 0)]
    for allowed_ns in range(100, 600, 7):
        found = largest_chunk(PROFILE, StandIn(), prompts, 0, 100, allowed_ns)
        lengths = [PROFILE.iteration_ns(0, 0, c, min(c, 30) * 300 // c if c else 0) for c in range(101)]
        assert found == max((c for c in range(101) if lengths[c] <= allowed_ns), default=0)


def budget(settings: PolyServeSettings, replica: StandIn, due: DueTimes | None = None, now_ns: int = 0) -> int:
    return BatchBudget(settings, FlatProfile()).of(replica, due or DueTimes(), 300, now_ns)


def test_the_budget_of_decodes() -> None:
    replica = StandIn(iterations=4, running=[Wanted(1, context=100)])
    due = DueTimes()
    due.add(1, 300, 1450, 4)
    assert budget(DEFAULT, replica, due, 1000) == 99, "nothing waits: what is left of the batch"
    replica.add(Wanted(2, context=500, due_ns=9999))
    assert budget(DEFAULT, replica, due, 1000) == 80  # 4/5 of 450 is 360: 200 + 2 x 80
    assert budget(replace(DEFAULT, slack_share=Fraction(1, 2)), replica, due, 1000) == 12  # 225
    assert budget(TPOT, replica, due, 1000) == 50  # 300
    assert budget(replace(DEFAULT, chunking="engine"), replica, due, 1000) == 99
    assert budget(DEFAULT, replica, due, 1400) == 99, "late in any case: it sets no bound"
    assert budget(DEFAULT, replica, None, 1000) == 99, "only late decodes"


def test_the_budget_without_decodes() -> None:
    replica = StandIn()
    replica.add(Wanted(1, context=150, due_ns=9999))
    replica.add(Wanted(2, context=150, due_ns=9999))
    assert budget(DEFAULT, replica) == 150
    assert budget(replace(DEFAULT, dynamic_chunking=False), replica) == 100


def test_others_do_not_make_a_prompt_late_that_completes() -> None:
    replica = StandIn()
    replica.add(Wanted(1, context=20, due_ns=1000 + 220))
    replica.add(Wanted(2, context=300, due_ns=9999))
    assert budget(DEFAULT, replica, None, 1000) == 60  # 100 + 2 x 60
    assert budget(DEFAULT, replica, None, 1080) == 20  # 140 is all that it has
    assert budget(DEFAULT, replica, None, 1081) == 100, "it is late in any case"
    replica.queue[0].request.late = True
    assert budget(DEFAULT, replica, None, 1000) == 100
