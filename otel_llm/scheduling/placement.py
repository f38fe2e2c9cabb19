"""The placement of requests: a policy compares backends, each gets a score and a reason. No I/O, no clock, no state.

The caller passes a snapshot of its backends (`Load`), the request (`Demand`), and a random source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Load:
    """The load of a backend.

    `streams`: those in flight; `tokens`: their prompts and their output so far; `waiting_tokens`: the prompts of those
    without a token yet; `starving`: streams whose reader has read all and waits. `iteration_s`: the predicted time of
    an iteration with one stream more (s, finite), None where unknown. `turn`: the number of the last placement here, 0
    where there was none: of equal backends the one with the lowest is first.
    """

    name: str
    streams: int
    tokens: int
    waiting_tokens: int = 0
    starving: int = 0
    iteration_s: float | None = None
    turn: int = 0


@dataclass(frozen=True, slots=True)
class Demand:
    """A request to place: the tokens to prefill, and the time per token that its class promises (s).

    `token_time_s` is None where no time per token is promised: `SloClass.token_time_ns` has the rule.
    """

    tokens: int = 0
    token_time_s: float | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A compared backend; in each score lower is better, and the first difference decides."""

    name: str
    score: Mapping[str, float]
    reason: str

    def record(self) -> dict[str, Any]:
        """Return its row of a decision record."""
        return {"instance": self.name, "score": dict(self.score), "reason": self.reason}


@dataclass(frozen=True, slots=True)
class Policy:
    """A way to compare backends, and the data it needs besides their streams and tokens.

    `predicts`: the iteration time of each, and the promised time per token; `counts_starving`: the starving streams of
    each.
    """

    compare: Callable[[Sequence[Load], Demand, random.Random], list[Candidate]]
    predicts: bool = False
    counts_starving: bool = False


def rank(policy: str, loads: Iterable[Load], demand: Demand, draw: random.Random) -> list[Candidate]:
    """Return a candidate for each load, best first; equal ones by their turns, then as given.

    The result is a function of the arguments and of the state of `draw`, which only `random` and `power_of_two` use.
    Raises KeyError for a name that is not in `POLICIES`.
    """
    loads = list(loads)
    compared = zip(POLICIES[policy].compare(loads, demand, draw), loads, strict=True)
    ordered = sorted(compared, key=lambda pair: (*pair[0].score.values(), pair[1].turn))
    return [candidate for candidate, _ in ordered]


# The policies. Each returns its candidates in the order of the loads, with scores of the same names.


def _least_load(loads: Sequence[Load], _demand: Demand, _draw: random.Random) -> list[Candidate]:
    return [Candidate(load.name, _least(load), _in_flight(load)) for load in loads]


def _spread(loads: Sequence[Load], _demand: Demand, _draw: random.Random) -> list[Candidate]:
    return [
        Candidate(load.name, {"streams": float(load.streams)}, f"{_count(load.streams, 'stream')} in flight")
        for load in loads
    ]


def _round_robin(loads: Sequence[Load], _demand: Demand, _draw: random.Random) -> list[Candidate]:
    return [
        Candidate(
            load.name, {"turn": float(load.turn)}, f"placement {load.turn} was its last" if load.turn else "no turn yet"
        )
        for load in loads
    ]


def _random(loads: Sequence[Load], _demand: Demand, draw: random.Random) -> list[Candidate]:
    return [Candidate(load.name, {"draw": draw.random()}, "drawn at random") for load in loads]


def _power_of_two(loads: Sequence[Load], _demand: Demand, draw: random.Random) -> list[Candidate]:
    """Rank the less loaded of two random ones first, then the other, then the rest by their load."""
    drawn = set(draw.sample(range(len(loads)), min(2, len(loads))))
    return [
        Candidate(
            load.name,
            {"not_drawn": float(index not in drawn), **_least(load)},
            f"{'one of two drawn' if index in drawn else 'not drawn'}: {_in_flight(load)}",
        )
        for index, load in enumerate(loads)
    ]


def _lmetric(loads: Sequence[Load], demand: Demand, _draw: random.Random) -> list[Candidate]:
    """Rank by the least (new prefill tokens) x (batch + 1): LMetric, arXiv 2603.15202. Without prefill, least batch."""
    found = []
    for load in loads:
        prefill, batch = demand.tokens + load.waiting_tokens, load.streams + 1
        score = {"lmetric": float(prefill * batch), "streams": float(load.streams)}
        found.append(Candidate(load.name, score, f"{_count(prefill, 'token')} to prefill x a batch of {batch}"))
    return found


def _pack(loads: Sequence[Load], demand: Demand, draw: random.Random) -> list[Candidate]:
    """Rank the fullest that meets the time per token first; those that do not are last, the least loaded first."""
    promised_s = demand.token_time_s
    if promised_s is None:
        return _no_time_promised(_least_load(loads, demand, draw))
    none = not any(_meets(load, promised_s) for load in loads)
    found = []
    for load in loads:
        meets = _meets(load, promised_s)
        sign = -1.0 if meets else 1.0
        score = {"misses": float(not meets), "tokens": sign * load.tokens, "streams": sign * load.streams}
        words = f"{'no backend meets it: ' if none else ''}{_predicted(load, promised_s)}; {_in_flight(load)}"
        found.append(Candidate(load.name, score, words))
    return found


def _safest(loads: Sequence[Load], demand: Demand, draw: random.Random) -> list[Candidate]:
    """Rank by the predicted margin, largest first, that is the shortest iteration; starving backends are last.

    Of equal margins, as where nothing is known of any, the least loaded is first.
    """
    promised_s = demand.token_time_s
    if promised_s is None:
        rest = _no_time_promised(_least_load(loads, demand, draw))
    else:
        rest = [
            Candidate(
                load.name,
                {"iteration_seconds": load.iteration_s or 0.0, **_least(load)},
                f"{_predicted(load, promised_s)}; {_in_flight(load)}",
            )
            for load in loads
        ]
    return [
        Candidate(
            one.name,
            {"starving": float(load.starving > 0), **one.score},
            f"{_count(load.starving, 'stream')} starving; {one.reason}",
        )
        for load, one in zip(loads, rest, strict=True)
    ]


POLICIES: Final[Mapping[str, Policy]] = {
    "least_load": Policy(_least_load),
    "spread": Policy(_spread),
    "pack": Policy(_pack, predicts=True),
    "safest": Policy(_safest, predicts=True, counts_starving=True),
    "round_robin": Policy(_round_robin),
    "random": Policy(_random),
    "power_of_two": Policy(_power_of_two),
    "lmetric": Policy(_lmetric),
}
"""Policies by name."""
DEFAULT: Final = "least_load"


# Shared scores and texts.


def _least(load: Load) -> dict[str, float]:
    return {"tokens": float(load.tokens), "streams": float(load.streams)}


def _in_flight(load: Load) -> str:
    return f"{_count(load.tokens, 'token')} of {_count(load.streams, 'stream')} in flight"


def _meets(load: Load, promised_s: float) -> bool:
    """Tell whether a backend keeps to a time per token; an unknown one counts as doing so."""
    return load.iteration_s is None or load.iteration_s <= promised_s


def _predicted(load: Load, promised_s: float) -> str:
    promised = f"{_ms(promised_s)} a token"
    if load.iteration_s is None:
        return f"nothing is known of its iterations, taken to meet {promised}"
    relation = "within" if _meets(load, promised_s) else "over"
    return f"{_ms(load.iteration_s)} predicted, {relation} {promised}"


def _no_time_promised(candidates: Iterable[Candidate]) -> list[Candidate]:
    return [Candidate(one.name, one.score, f"no time a token is promised: {one.reason}") for one in candidates]


def _ms(seconds: float) -> str:
    return f"{round(seconds * 1e3, 2):g} ms"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
