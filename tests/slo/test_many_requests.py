"""The array form's own concerns: shapes, blocks, times near the ends of 64 bits, long requests."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.slo.requests import Request, requests, slo_classes

from otel_llm.slo.batch.judged import Judged
from otel_llm.slo.batch.many import judge_many, penalties
from otel_llm.slo.batch.recorded import Recorded
from otel_llm.slo.classes import CONTENT, OUTCOMES, TOOL, Benefit, Deadline, Fluidity, Objective, Penalty, SloClass
from otel_llm.slo.fluid.fluid_rate import fluid_tbt_ns, targets
from otel_llm.slo.fluid.fluid_search import FluidTargets, fluid_tbt_many
from otel_llm.slo.request import judge
from otel_llm.slo.verdict import Verdict

FAR = 2**62


def one_by_one(recorded: Recorded, classes: list[SloClass], index: list[int]) -> list[Verdict]:
    found = []
    for request, code in enumerate(index):
        tokens = slice(int(recorded.offsets[request]), int(recorded.offsets[request + 1]))
        found.append(
            judge(
                recorded.tokens_ns[tokens].tolist(),
                int(recorded.commit_ns[request]),
                int(recorded.end_ns[request]),
                OUTCOMES[recorded.outcomes[request]],
                classes[code],
                None if recorded.kinds is None else recorded.kinds[tokens].tolist(),
            )
        )
    return found


@settings(max_examples=examples(60))
@given(st.lists(slo_classes(), min_size=2, max_size=2), st.lists(requests(), max_size=12), st.integers(1, 30))
def test_blocks_of_any_size_give_the_same(classes: list[SloClass], found: list[Request], most: int) -> None:
    recorded = Recorded.of(
        [request.tokens_ns for request in found],
        [request.commit_ns for request in found],
        [request.end_ns for request in found],
        [request.outcome for request in found],
        [request.kinds for request in found],
    )
    index = [number % 2 for number in range(len(found))]
    fluid = FluidTargets(len(found))
    many = judge_many(recorded, classes, np.array(index, np.intp), fluid, block_tokens=most)
    alone = fluid_tbt_many(recorded, classes, np.array(index, np.intp), block_tokens=most)
    assert many.verdicts() == one_by_one(recorded, classes, index)
    wanted = []
    for request, code in zip(found, index, strict=True):
        kinds = request.kinds or [CONTENT] * len(request.tokens_ns)
        read = [
            max(time, request.commit_ns)
            for time, kind in zip(request.tokens_ns, kinds, strict=True)
            if kind in classes[code].reads
        ]
        wanted.append(fluid_tbt_ns(sorted(read), targets(classes[code].objective)[0]))
    for targets_found in (fluid.masked(), alone):
        pairs = zip(targets_found.values.tolist(), targets_found.known.tolist(), strict=True)
        assert [value if known else None for value, known in pairs] == wanted


@pytest.mark.parametrize("block_tokens", [1, 1000])
@pytest.mark.parametrize("fluidity", [Fraction(1), Fraction(9, 10), Fraction(2, 3)], ids=str)
def test_spans_that_leave_64_bits_together_are_searched_apart(block_tokens: int, fluidity: Fraction) -> None:
    generator = np.random.default_rng(3)
    times = [np.cumsum(generator.integers(0, 2**55, 40) * generator.integers(0, 2, 40)).tolist() for _ in range(1500)]
    recorded = Recorded.of(times, [0] * 1500, [0] * 1500, ["completed"] * 1500)
    many = fluid_tbt_many(recorded, [SloClass(objective=Objective(fluidity))], block_tokens=block_tokens)
    assert many.values.tolist() == [fluid_tbt_ns(one, fluidity) for one in times]


@pytest.mark.parametrize("times", [[FAR + 5, -FAR - 5], [-FAR - 5, FAR + 5]])
def test_tokens_out_of_order_are_seen_where_their_gap_leaves_64_bits(times: list[int]) -> None:
    recorded = Recorded.of([times], [min(times)], [max(times)], ["completed"])
    for many in (judge_many, fluid_tbt_many):
        with pytest.raises(OverflowError):  # and not a wrong answer
            many(recorded, [SloClass()])


@pytest.mark.parametrize("count", ["deadlines", "tokens"])
@pytest.mark.parametrize("policy", ["reading", "dslo", "ttft_tbt", "ttft_tpot", "e2e"])
def test_thousands_of_realistic_requests(policy: str, count: str) -> None:
    generator = np.random.default_rng(7)
    lengths = generator.integers(0, 400, 1500)
    gaps = generator.lognormal(np.log(22e6), 0.9, int(lengths.sum())).astype(np.int64)
    gaps[generator.random(len(gaps)) < 0.004] += 6_000_000_000  # beyond 32 bits of ns
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    commit = 1_790_000_000_000_000_000 + generator.integers(0, 10**12, len(lengths))
    times = np.concatenate([np.cumsum(gaps[low:high]) for low, high in pairwise(offsets)])
    times += np.repeat(commit, lengths)
    recorded = Recorded(
        times,
        offsets,
        commit,
        commit + generator.integers(0, 10**10, len(lengths)),
        generator.integers(0, len(OUTCOMES), len(lengths)).astype(np.uint8),
    )
    following = None if policy in ("reading", "e2e") else 80_000_000
    slo = SloClass(
        deadline=Deadline(policy, 2_000_000_000, following),  # type: ignore[arg-type]
        fluidity=Fluidity(count=count),  # type: ignore[arg-type]
    )
    assert judge_many(recorded, [slo]).verdicts() == one_by_one(recorded, [slo], [0] * len(recorded))


@pytest.mark.parametrize("times", [[-FAR, 0, FAR - 1], [FAR, FAR - 1], [0, 2**63 - 1], [-(2**63), -1]])
@pytest.mark.parametrize("outcome", ["completed", "error"])
def test_times_near_the_ends_of_64_bits_are_judged_exactly(times: list[int], outcome: str) -> None:
    near = [10, 20, 30]
    recorded = Recorded.of([near, times], [0, min(times)], [40, max(times)], [outcome] * 2)
    slo = SloClass(deadline=Deadline("dslo", 5, 5))
    assert judge_many(recorded, [slo]).verdicts() == one_by_one(recorded, [slo], [0, 0])


def test_a_request_longer_than_64_bits_of_ns_is_refused() -> None:
    with pytest.raises(OverflowError):
        judge_many(Recorded.of([[FAR]], [-FAR - 1], [FAR], ["lost"]), [SloClass()])


def test_thresholds_that_would_overflow_are_judged_exactly() -> None:
    slo = SloClass(pace_ns=10**18, fluidity=Fluidity(tbt_ns=10**18))
    recorded = Recorded.of([list(range(20))], [0], [30], ["cancelled"])
    assert judge_many(recorded, [slo]).verdicts() == one_by_one(recorded, [slo], [0])


@pytest.mark.parametrize("times", [[0, 1, 2, 390849900201279330], [0, *range(6), 97816009008880567]])
def test_lengths_beyond_2_53_are_rounded_once(times: list[int]) -> None:
    recorded = Recorded.of([times], [0], [times[-1]], ["completed"])
    span, steps = times[-1], len(times) - 1
    assert span / steps / 1e9 != float(span) / float(steps) / 1e9  # what rounding twice would give
    assert judge_many(recorded, [SloClass()]).column("tpot_s").values[0] == span / steps / 1e9


def test_no_request_at_all() -> None:
    many = judge_many(Recorded.of([], [], [], []), [SloClass()])
    assert len(many) == 0
    assert many.verdicts() == []


def test_requests_without_tokens() -> None:
    recorded = Recorded.of([[], [5], []], [0, 0, 0], [9, 9, 9], ["completed", "completed", "error"])
    assert judge_many(recorded, [SloClass()]).verdicts() == one_by_one(recorded, [SloClass()], [0, 0, 0])


def test_requests_of_which_nothing_is_read() -> None:
    kinds: list[list[int] | None] = [[TOOL, TOOL], None, [CONTENT, TOOL]]
    recorded = Recorded.of([[1, 2], [3], [4, 5]], [0, 0, 0], [9, 9, 9], ["completed", "error", "lost"], kinds)
    for reads in ((CONTENT,), (TOOL,), (1,)):
        slo = SloClass(reads=reads)
        assert judge_many(recorded, [slo]).verdicts() == one_by_one(recorded, [slo], [0, 0, 0])


def test_the_input_is_left_as_it_was() -> None:
    recorded = Recorded.of([[5, 3, 1], [-2, 7]], [0, 0], [9, 9], ["completed"] * 2, [[0, 1, 2], [0, 0]])
    judge_many(recorded, [SloClass()])
    assert recorded.tokens_ns.tolist() == [5, 3, 1, -2, 7]
    assert recorded.kinds is not None
    assert recorded.kinds.tolist() == [0, 1, 2, 0, 0]


def arrays(**changes: object) -> dict[str, object]:
    return {
        "tokens_ns": np.array([1, 2]),
        "offsets": np.array([0, 1, 2]),
        "commit_ns": np.array([0, 0]),
        "end_ns": np.array([5, 5]),
        "outcomes": np.array([0, 0], np.uint8),
        **changes,
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"offsets": np.array([0, 1, 3])}, "offsets"),
        ({"offsets": np.array([1, 1, 2])}, "offsets"),
        ({"offsets": np.array([0, 3, 2])}, "offsets"),
        ({"offsets": np.array([], np.int64)}, "offsets"),
        ({"commit_ns": np.array([0])}, "2 each"),
        ({"end_ns": np.array([0])}, "2 each"),
        ({"outcomes": np.array([0, 6], np.uint8)}, "outcome codes are 0 to 5"),
        ({"kinds": np.array([0], np.uint8)}, "kinds"),
        ({"kinds": np.array([0, 3], np.uint8)}, "kinds"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises((ValueError, IndexError), match=message):
        Recorded(**arrays(**changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("index", [[0], [0, 1], [0, -1], [0, 0, 0]])
def test_a_class_index_that_is_none_is_refused(index: list[int]) -> None:
    recorded = Recorded(**arrays())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="2 positions in 1 classes"):
        judge_many(recorded, [SloClass()], np.array(index))


def test_room_for_verdicts_knows_nothing_yet() -> None:
    empty = Judged.empty(2)
    assert not empty.column("met").known.any()
    assert not empty.column("idle_s").known.any()


@given(
    idle_ns=st.lists(st.integers(0, 2**55), max_size=20),
    alpha=st.floats(0, 1e6),
    penalty=st.sampled_from(get_args(Penalty)),
)
def test_idle_times_cost_to_the_bit_what_each_costs(idle_ns: list[int], alpha: float, penalty: Penalty) -> None:
    benefit = Benefit(alpha, penalty)
    costs = penalties(np.array(idle_ns, np.int64), SloClass(benefit=benefit))
    assert costs.tolist() == [benefit.penalty_tokens(idle) for idle in idle_ns]
