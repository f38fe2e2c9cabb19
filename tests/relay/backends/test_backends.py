"""Who can take a stream: drains, changes, and how a burst is spread. A clock that stands still."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction

import pytest
from support.scheduling.profiles import SMALL_ENGINE

from otel_llm.relay.backends.backend import Backend
from otel_llm.relay.backends.backends import COMING_S, STARVING_S, Backends
from otel_llm.scheduling.placement import POLICIES, Demand
from otel_llm.scheduling.profiles.profile import LinearProfile, Terms


@dataclass
class Reported:
    """Backends under a clock that a test sets, and how often a change was notified."""

    now_s: float = 100.0
    changes: int = 0
    backends: Backends = field(init=False)

    def __post_init__(self) -> None:
        found = [Backend("a", "http://a", models={"m": 9}), Backend("b", "http://b", group="g")]
        self.backends = Backends(found, lambda: self.now_s, eject_s=5.0)
        self.backends.changed = self._count

    def _count(self) -> None:
        self.changes += 1

    def open_names(self) -> list[str]:
        return [one.name for one in self.backends.open_to()]


def test_changes_are_told_only_where_something_has_changed() -> None:
    reported = Reported()
    a = reported.backends.get("a")
    reported.backends.answered(a)
    reported.backends.serves(a, {"m": 9})
    assert reported.backends.drain("a", draining=False)
    assert reported.changes == 0
    reported.backends.refused(a)
    reported.backends.refused(a)
    reported.backends.serves(a, {"m": 10})
    assert reported.backends.drain("a")
    assert reported.backends.drain("a")
    assert reported.changes == 3
    assert not reported.backends.drain("nowhere")


@pytest.mark.parametrize("closed", ["healthy", "draining"])
def test_one_that_takes_no_streams_is_not_chosen(closed: str) -> None:
    reported = Reported()
    a = reported.backends.get("a")
    if closed == "healthy":
        reported.backends.refused(a)
    else:
        reported.backends.drain("a")
    assert {one.name for one in [reported.backends.choose("least_load", ()) for _ in range(4)] if one} == {"b"}
    assert reported.backends.choose("least_load", {"b"}) is None
    assert [one.name for one in reported.backends.open_to(group="g")] == ["b"]
    assert [one.name for one in reported.backends.open_to(group="")] == ([] if closed == "draining" else ["a"])


@pytest.mark.parametrize(("count", "prompt"), [(12, 8), (7, 3000)])
def test_a_burst_of_equal_requests_is_spread_evenly(count: int, prompt: int) -> None:
    reported = Reported()
    got: Counter[str] = Counter()
    for _ in range(count):
        chosen = reported.backends.choose("least_load", ())
        assert chosen is not None
        reported.backends.begin(chosen, prompt)
        got[chosen.name] += 1
    assert max(got.values()) - min(got.values()) <= 1


def test_a_stream_that_ends_takes_all_of_its_load_along() -> None:
    reported = Reported()
    a = reported.backends.get("a")
    reported.backends.begin(a, 10)
    reported.backends.grow(a, 5)
    reported.backends.begin(a, 1)
    assert (a.streams, a.tokens) == (2, 16)
    reported.backends.end(a, 15)
    assert (a.streams, a.tokens) == (1, 1)


# What placement gets to know.


def test_streams_that_are_placed_at_one_instant_count_before_they_begin() -> None:
    """As when a rule moves all streams of a backend: each of them is begun later, and most at once."""
    reported = Reported()
    open_to = reported.backends.open_to()
    first = [reported.backends.rank("least_load", open_to, Demand(30))[0].name for _ in range(6)]
    assert Counter(first) == {"a": 3, "b": 3}
    score = {one.name: one.score for one in reported.backends.rank("least_load", open_to)}
    assert score["a"] == score["b"] == {"tokens": 90.0, "streams": 3.0}
    reported.backends.begin(reported.backends.get("a"), 35)
    score = {one.name: one.score for one in reported.backends.rank("spread", open_to)}
    assert score["a"]["streams"] + score["b"]["streams"] == 7.0, "a stream that has begun counts once"


def test_a_stream_that_was_placed_and_never_begins_is_forgotten() -> None:
    reported = Reported()
    open_to = reported.backends.open_to()
    for _ in range(4):
        reported.backends.rank("least_load", open_to, Demand(30))
    reported.now_s += COMING_S
    assert [one.score["tokens"] for one in reported.backends.rank("least_load", open_to)] == [0.0, 0.0]


@pytest.mark.parametrize("policy", sorted(set(POLICIES) - {"random", "power_of_two", "pack"}))
def test_equal_backends_take_turns(policy: str) -> None:
    reported = Reported()
    got = []
    for _ in range(4):
        chosen = reported.backends.choose(policy, (), Demand(5, 0.1))
        assert chosen is not None
        reported.backends.begin(chosen, 5, 5)
        reported.backends.end(chosen, 5, 5)
        got.append(chosen.name)
    assert got == ["a", "b", "a", "b"]


def test_a_seed_makes_draws_that_can_be_repeated() -> None:
    def draws(seed: int) -> list[str]:
        backends = Backends([Backend(name, "http://h") for name in "abcdef"], lambda: 0.0, seed=seed)
        return [backends.rank("random", backends.open_to())[0].name for _ in range(20)]

    assert draws(1) == draws(1) != draws(2)


def test_the_prediction_is_for_one_stream_more() -> None:
    """Two streams took 20 ms and three 30; with a stream in flight and one placed, the next is the third."""
    reported = Reported()
    a, b = reported.backends.get("a"), reported.backends.get("b")
    for streams, gap_s in ((2, 0.020), (3, 0.030)):
        a.gaps.observe(streams, gap_s, reported.now_s + gap_s)
    reported.now_s += 0.1
    reported.backends.begin(a, 10)
    assert score_of(reported, "safest", a)["iteration_seconds"] == pytest.approx(0.020)
    assert score_of(reported, "safest", a)["iteration_seconds"] == pytest.approx(0.030), (
        "the one before was placed here"
    )
    assert score_of(reported, "safest", b)["iteration_seconds"] == 0.0
    reported.now_s += 61.0
    assert score_of(reported, "safest", a)["iteration_seconds"] == 0.0, "that was too long ago"


def test_a_profile_predicts_by_streams_and_tokens_where_there_is_one() -> None:
    """10 ms, 1 ms a stream and 10 us a token: with 100 tokens of one stream, 5 new ones make 2 streams of 105."""
    reported = Reported()
    a = reported.backends.get("a")
    terms = Terms(base=Fraction(10_000_000), per_decode=Fraction(1_000_000), per_kv_token=Fraction(10_000))
    a.profile = LinearProfile(name="small", terms=terms, **SMALL_ENGINE | {"step_overhead_ns": 500_000})
    a.gaps.observe(2, 0.9, reported.now_s + 0.9)
    reported.backends.begin(a, 100)
    assert score_of(reported, "safest", a)["iteration_seconds"] == pytest.approx(0.010 + 0.002 + 0.00105 + 0.0005)


def score_of(reported: Reported, policy: str, backend: Backend) -> dict[str, float]:
    (one,) = reported.backends.rank(policy, [backend], Demand(5, 0.1))
    return dict(one.score)


def test_a_prompt_waits_until_its_first_token_or_its_end() -> None:
    reported = Reported()
    a = reported.backends.get("a")
    reported.backends.begin(a, 100, 100)
    reported.backends.begin(a, 10, 10)
    assert score_of(reported, "lmetric", a) == {"lmetric": 115.0 * 3, "streams": 2.0}
    reported.now_s += COMING_S
    reported.backends.prefilled(a, 100)
    assert score_of(reported, "lmetric", a)["lmetric"] == 15.0 * 3
    reported.now_s += COMING_S
    reported.backends.end(a, 110, 0)
    reported.backends.end(a, 10, 10)
    assert score_of(reported, "lmetric", a)["lmetric"] == 5.0


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_starving_streams_are_counted_only_for_who_needs_them(policy: str) -> None:
    reported = Reported()
    asked = []

    def starving() -> dict[str, int]:
        asked.append(policy)
        return {"a": 2, "": 1}

    reported.backends.starving = starving
    chosen = reported.backends.choose(policy, (), Demand(5, 0.1))
    assert asked == (["safest"] if policy == "safest" else [])
    assert policy != "safest" or (chosen is not None and chosen.name == "b")


def test_starving_streams_are_counted_once_for_many_placements_at_one_instant() -> None:
    reported = Reported()
    counts = [{"a": 1}, {"b": 1}]
    reported.backends.starving = lambda: counts.pop(0)

    def safest() -> str:
        return reported.backends.rank("safest", reported.backends.open_to(), Demand(5, 0.1))[0].name

    assert {safest() for _ in range(5)} == {"b"}
    reported.now_s += STARVING_S
    assert {safest() for _ in range(5)} == {"a"}
    assert counts == []
