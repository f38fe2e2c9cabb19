"""Which backend a policy prefers, in what order the others follow, and the reasons given. Cases worked by hand."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_llm.scheduling.placement import DEFAULT, POLICIES, Candidate, Demand, Load, best, rank

NUMBERS = st.integers(0, 2**40)
LOADS = st.lists(
    st.builds(
        Load,
        name=st.text("abcdef", min_size=1, max_size=3),
        requests=st.integers(0, 4) | NUMBERS,
        tokens=st.integers(0, 4) | NUMBERS,
        prefill_tokens=st.integers(0, 4) | NUMBERS,
        starving=st.integers(0, 3),
        iteration_s=st.none() | st.sampled_from([0.0, 0.01, 0.02, 0.05]) | st.floats(0, 1e6),
        turn=st.integers(0, 4),
    ),
    max_size=7,
    unique_by=lambda load: load.name,
)
DEMANDS = st.builds(
    Demand, tokens=NUMBERS, token_time_s=st.none() | st.sampled_from([0.01, 0.02]) | st.floats(1e-9, 1e3)
)
NONE = Demand()


def ranked(policy: str, *loads: Load, demand: Demand = NONE, seed: int = 0) -> list[Candidate]:
    return rank(policy, loads, demand, random.Random(seed))


def order(policy: str, *loads: Load, demand: Demand = NONE, seed: int = 0) -> str:
    return "".join(one.name for one in ranked(policy, *loads, demand=demand, seed=seed))


# The order of each policy.


def test_least_load_counts_tokens_and_then_streams() -> None:
    loads = Load("a", 5, 10), Load("b", 1, 10), Load("c", 2, 9)
    assert order("least_load", *loads) == "cba"
    assert order(DEFAULT, *loads) == "cba"


def test_spread_counts_streams_only() -> None:
    assert order("spread", Load("a", 5, 10), Load("b", 1, 10), Load("c", 2, 9)) == "bca"


def test_round_robin_takes_the_one_whose_turn_is_the_longest_ago() -> None:
    """A new one, or one that comes back, is next; how much each has does not matter."""
    loads = Load("a", 0, 0, turn=7), Load("b", 9, 900, turn=5), Load("c", 0, 0, turn=6), Load("d", 3, 3)
    assert order("round_robin", *loads) == "dbca"


def test_lmetric_multiplies_what_is_to_be_prefilled_by_the_batch() -> None:
    """The request has 100 tokens: a (100 + 0) x 10 = 1000, b (100 + 50) x 4 = 600, c (100 + 1000) x 1 = 1100."""
    loads = Load("a", 9, 1, 0), Load("b", 3, 9000, 50), Load("c", 0, 0, 1000)
    assert order("lmetric", *loads, demand=Demand(100)) == "bac"
    first = ranked("lmetric", *loads, demand=Demand(100))[0]
    assert first.record() == {
        "instance": "b",
        "score": {"lmetric": 600.0, "streams": 3.0},
        "reason": "150 tokens to prefill x a batch of 4",
    }
    assert order("lmetric", *(replace(load, prefill_tokens=0) for load in loads)) == "cba", (
        "nothing to prefill anywhere"
    )


def test_pack_takes_the_fullest_that_keeps_to_the_time_a_token() -> None:
    """30 ms are promised: a and b keep to it, b to the very time; c is fuller and does not; d is emptier than c."""
    loads = (
        Load("a", 2, 900, iteration_s=0.010),
        Load("b", 8, 950, iteration_s=0.030),
        Load("c", 9, 2000, iteration_s=0.0301),
        Load("d", 9, 1000, iteration_s=0.9),
        Load("e", 7, 950, iteration_s=0.020),
    )
    assert order("pack", *loads, demand=Demand(5, 0.030)) == "beadc"
    first, *_, last = ranked("pack", *loads, demand=Demand(5, 0.030))
    assert first.record() == {
        "instance": "b",
        "score": {"misses": 0.0, "tokens": -950.0, "streams": -8.0},
        "reason": "30 ms predicted, within 30 ms a token; 950 tokens of 8 streams in flight",
    }
    assert last.reason == "30.1 ms predicted, over 30 ms a token; 2000 tokens of 9 streams in flight"


def test_pack_says_that_none_keeps_to_it_and_takes_the_least_loaded() -> None:
    loads = Load("a", 2, 900, iteration_s=0.010), Load("b", 8, 95, iteration_s=0.030)
    found = ranked("pack", *loads, demand=Demand(5, 0.005))
    assert [one.name for one in found] == ["b", "a"]
    assert all(one.reason.startswith("no backend meets it: ") for one in found)


@pytest.mark.parametrize(("policy", "expected"), [("pack", "ba"), ("safest", "ba")])
def test_a_class_without_a_time_a_token_goes_to_the_least_loaded(policy: str, expected: str) -> None:
    loads = Load("a", 2, 900, iteration_s=0.010), Load("b", 8, 95, iteration_s=0.030)
    found = ranked(policy, *loads, demand=Demand(5))
    assert "".join(one.name for one in found) == expected
    assert all("no time a token is promised: " in one.reason for one in found)


def test_safest_takes_the_largest_margin() -> None:
    """30 ms are promised: margins a 5, b 20, c -70, d -10 ms. Of those that miss it the least bad is first."""
    loads = (
        Load("a", 0, 0, iteration_s=0.025),
        Load("b", 8, 950, iteration_s=0.010),
        Load("c", 0, 0, iteration_s=0.100),
        Load("d", 0, 0, iteration_s=0.040),
    )
    assert order("safest", *loads, demand=Demand(5, 0.030)) == "badc"
    assert order("safest", loads[2], loads[3], demand=Demand(5, 0.030)) == "dc"


@pytest.mark.parametrize("promised_s", [0.030, None])
def test_safest_takes_none_with_a_starving_stream_while_another_has_none(promised_s: float | None) -> None:
    """However large its margin; if all have some the margin decides again, not how many they are."""
    starves = Load("a", 1, 10, starving=1, iteration_s=0.001)
    misses = Load("b", 9, 90, iteration_s=5.0)
    starves_more = Load("c", 0, 0, starving=4, iteration_s=0.0005)
    assert order("safest", starves, misses, starves_more, demand=Demand(5, promised_s)) == "bca"
    assert ranked("safest", starves, misses, demand=Demand(5, promised_s))[1].reason.startswith("1 stream starving; ")


def test_of_one_nothing_is_known_of_the_whole_time_is_its_margin() -> None:
    known, unknown = Load("a", 1, 10, iteration_s=0.001), Load("b", 5, 50)
    found = ranked("safest", known, unknown, demand=Demand(5, 0.030))
    assert [one.name for one in found] == ["b", "a"]
    assert found[0].score == {"starving": 0.0, "iteration_seconds": 0.0, "tokens": 50.0, "streams": 5.0}
    assert found[0].reason == (
        "0 streams starving; nothing is known of its iterations, taken to meet 30 ms a token; "
        "50 tokens of 5 streams in flight"
    )
    assert order("safest", unknown, replace(unknown, name="c", tokens=49), demand=Demand(5, 0.030)) == "cb"
    assert order("pack", known, unknown, demand=Demand(5, 0.030)) == "ba", "it meets it, and is the fuller one"


def test_power_of_two_takes_the_less_loaded_of_the_two_that_are_drawn() -> None:
    """So the most loaded of four is never first; the two are in front, and in both pairs the order is by load."""
    loads = [Load(name, 1, tokens) for name, tokens in (("a", 1), ("b", 2), ("c", 3), ("d", 4))]
    first: Counter[str] = Counter()
    for seed in range(600):
        found = order("power_of_two", *loads, seed=seed)
        assert found[0] < found[1]
        assert found[2] < found[3]
        first[found[0]] += 1
    # Of the six pairs three have a, two b without a, one is c and d; 600 draws are within five deviations of that.
    assert all(abs(first[name] - expected) < 60 for name, expected in (("a", 300), ("b", 200), ("c", 100)))
    assert first["d"] == 0


def test_random_takes_each_as_often() -> None:
    loads = [Load(name, tokens, tokens) for name, tokens in (("a", 1), ("b", 200), ("c", 3))]
    first = Counter(order("random", *loads, seed=seed)[0] for seed in range(600))
    assert all(abs(count - 200) < 60 for count in first.values())
    assert len(first) == 3


@pytest.mark.parametrize("policy", sorted(set(POLICIES) - {"random", "power_of_two"}))
def test_equal_ones_take_turns(policy: str) -> None:
    loads = [Load(name, 1, 10, iteration_s=0.01, turn=turn) for name, turn in (("a", 4), ("b", 2), ("c", 3))]
    assert order(policy, *loads, demand=Demand(5, 0.02)) == "bca"


def test_a_policy_that_is_not_there_is_refused() -> None:
    with pytest.raises(KeyError):
        ranked("fullest", Load("a", 0, 0))


def test_a_candidate_says_its_score_and_why() -> None:
    (one,) = ranked("least_load", Load("a", 2, 30))
    assert one.record() == {
        "instance": "a",
        "score": {"tokens": 30.0, "streams": 2.0},
        "reason": "30 tokens of 2 streams in flight",
    }


# What holds for all of them.


@given(policy=st.sampled_from(sorted(POLICIES)), loads=LOADS, demand=DEMANDS, seed=st.integers(0, 9))
def test_a_ranking_has_each_backend_once_the_lower_score_first(
    policy: str, loads: list[Load], demand: Demand, seed: int
) -> None:
    found = rank(policy, loads, demand, random.Random(seed))
    assert sorted(one.name for one in found) == sorted(load.name for load in loads)
    scores = [tuple(one.score.values()) for one in found]
    assert scores == sorted(scores)
    assert len({tuple(one.score) for one in found}) <= 1, "one cannot be compared with another by other scores"
    assert all(one.reason for one in found)
    json.dumps([one.record() for one in found], allow_nan=False)
    assert rank(policy, loads, demand, random.Random(seed)) == found


@given(policy=st.sampled_from(sorted(POLICIES)), loads=LOADS.filter(bool), demand=DEMANDS, seed=st.integers(0, 9))
def test_the_best_is_the_first_of_the_ranking(policy: str, loads: list[Load], demand: Demand, seed: int) -> None:
    found = best(POLICIES[policy], loads, demand, random.Random(seed))
    assert found.name == rank(policy, loads, demand, random.Random(seed))[0].name


@given(policy=st.sampled_from(sorted(POLICIES)), loads=LOADS, demand=DEMANDS)
def test_the_order_in_which_backends_stand_decides_among_equal_ones_only(
    policy: str, loads: list[Load], demand: Demand
) -> None:
    if policy in ("random", "power_of_two"):
        return
    loads = [replace(load, turn=turn) for turn, load in enumerate(loads)]
    assert rank(policy, loads[::-1], demand, random.Random(0)) == rank(policy, loads, demand, random.Random(0))


@given(loads=LOADS.filter(bool), promised_s=st.sampled_from([0.01, 0.02, 0.05]))
def test_the_first_of_pack_and_safest_is_the_one_of_the_contract(loads: list[Load], promised_s: float) -> None:
    """Said otherwise: filter first, then take the largest."""
    demand = Demand(1, promised_s)
    meet = [load for load in loads if load.iteration_s is None or load.iteration_s <= promised_s]
    by_name = {load.name: load for load in loads}

    packed = by_name[rank("pack", loads, demand, random.Random(0))[0].name]
    if meet:
        assert packed in meet
        assert (packed.tokens, packed.requests) == max((load.tokens, load.requests) for load in meet)
    else:
        assert (packed.tokens, packed.requests) == min((load.tokens, load.requests) for load in loads)

    safe = by_name[rank("safest", loads, demand, random.Random(0))[0].name]
    calm = [load for load in loads if not load.starving] or loads
    assert safe in calm
    assert (safe.iteration_s or 0.0) == min(load.iteration_s or 0.0 for load in calm)
