"""The placement of requests: a policy compares backends, each gets a score and a reason. No I/O, no clock, no state.

The caller passes its backends, the request (`Demand`), and a random source. The relay ranks them (`rank`), since it
records each candidate with its score; the simulator takes the best of its instances (`best`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence


class Target(Protocol):
    """What every caller knows of a backend or a simulated instance.

    `requests`: those in flight; `tokens`: their prompts and their output so far; `prefill_tokens`: the prompts of
    those without a token yet. `turn`: the number of the last placement here, 0 if there was none.
    """

    @property
    def requests(self) -> int: ...  # noqa: D102
    @property
    def tokens(self) -> int: ...  # noqa: D102
    @property
    def prefill_tokens(self) -> int: ...  # noqa: D102
    @property
    def turn(self) -> int: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Load:
    """The load of a backend: a `Target`, and what the relay alone knows.

    `starving`: streams whose reader has read all and waits. `iteration_s`: the predicted time of an iteration with one
    stream more (s, finite), None if it is unknown.
    """

    name: str
    requests: int
    tokens: int
    prefill_tokens: int = 0
    starving: int = 0
    iteration_s: float | None = None
    turn: int = 0


@dataclass(frozen=True, slots=True)
class Demand:
    """A request to place: the tokens to prefill, and the time per token that its class promises (s).

    `token_time_s` is None if no time per token is promised: `SloClass.token_time_ns` has the rule.
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
class Draw:
    """A draw of the first `count` backends; the others follow. `name`: of its score, 0 for those that were drawn."""

    count: int
    name: str
    drawn: str
    rest: str = "not drawn"


@dataclass(frozen=True, slots=True)
class Policy:
    """A way to compare backends, and the data that it needs besides `Target`.

    `score` returns numbers: lower is better. They end with the turn, so that equal backends take turns. `names`: of the
    numbers that are recorded. `why` returns the reason, given the load, the demand and the first load of all.

    `predicts`: it needs the iteration time of each, and the promised time per token; `unpromised` replaces it if none
    is promised. `counts_starving`: it needs the starving streams of each.
    """

    score: Callable[[Any, Demand], tuple[float, ...]]
    names: tuple[str, ...]
    why: Callable[[Any, Demand, Any], str]
    draw: Draw | None = None
    predicts: bool = False
    counts_starving: bool = False
    unpromised: Policy | None = None

    def given(self, demand: Demand) -> Policy:
        """Return the policy that decides about a request."""
        return self.unpromised if self.unpromised is not None and demand.token_time_s is None else self


TargetT = TypeVar("TargetT", bound=Target)


def best(policy: Policy, targets: Sequence[TargetT], demand: Demand, draw: random.Random) -> TargetT:
    """Return the target that a policy prefers, of one or more: the first of `rank`."""
    rule = policy.given(demand)
    score = rule.score
    if rule.draw is not None:
        targets = [targets[index] for index in sorted(_drawn(rule.draw, len(targets), draw))]
    return min(targets, key=lambda target: score(target, demand))


def rank(policy: str, loads: Iterable[Load], demand: Demand, draw: random.Random) -> list[Candidate]:
    """Return a candidate for each load, best first; equal ones by their turns, then as given.

    The result is a function of the arguments and of the state of `draw`, which only `random` and `power_of_two` use.
    Raises KeyError for a name that is not in `POLICIES`.
    """
    rule, loads = POLICIES[policy].given(demand), list(loads)
    names: tuple[str, ...] = rule.names
    scores = [rule.score(load, demand) for load in loads]
    reasons = [""] * len(loads)
    if rule.draw is not None:
        drawn = _drawn(rule.draw, len(loads), draw)
        names = (rule.draw.name, *names)
        scores = [(index not in drawn, *score) for index, score in enumerate(scores)]
        reasons = [rule.draw.drawn if index in drawn else rule.draw.rest for index in range(len(loads))]
    order = sorted(range(len(loads)), key=scores.__getitem__)
    return [
        Candidate(
            loads[index].name,
            {name: float(number) for name, number in zip(names, scores[index], strict=False)},
            ": ".join(filter(None, (reasons[index], rule.why(loads[index], demand, loads[order[0]])))),
        )
        for index in order
    ]


def _drawn(draw: Draw, targets: int, source: random.Random) -> Collection[int]:
    """Return the positions of those that are drawn."""
    return source.sample(range(targets), min(draw.count, targets))


# Scores. Each ends with the turn.


def _turn(target: Target, _demand: Demand) -> tuple[float, ...]:
    return (target.turn,)


def _least(target: Target, _demand: Demand) -> tuple[float, ...]:
    return target.tokens, target.requests, target.turn


def _spread(target: Target, _demand: Demand) -> tuple[float, ...]:
    return target.requests, target.turn


def _lmetric(target: Target, demand: Demand) -> tuple[float, ...]:
    """Return (new prefill tokens) x (batch + 1): LMetric, arXiv 2603.15202. Without prefill, the least batch is first.

    The batch decides in any case of equal products.
    """
    requests = target.requests
    return (target.prefill_tokens + demand.tokens) * (requests + 1), requests, target.turn


def _pack(load: Load, demand: Demand) -> tuple[float, ...]:
    """Prefer the fullest that meets the time per token; those that do not are last, the least loaded first."""
    if _meets(load, demand):
        return 0, -load.tokens, -load.requests, load.turn
    return 1, load.tokens, load.requests, load.turn


def _safest(load: Load, demand: Demand) -> tuple[float, ...]:
    """Prefer the largest predicted margin, that is the shortest iteration; starving backends are last.

    Of equal margins, as if nothing is known of any, the least loaded is first.
    """
    return load.starving > 0, load.iteration_s or 0.0, *_least(load, demand)


def _safest_unpromised(load: Load, demand: Demand) -> tuple[float, ...]:
    return load.starving > 0, *_least(load, demand)


# Reasons.


def _in_flight(load: Load, _demand: Demand, _first: Load) -> str:
    return f"{_count(load.tokens, 'token')} of {_count(load.requests, 'stream')} in flight"


def _unpromised(load: Load, demand: Demand, first: Load) -> str:
    return f"no time a token is promised: {_in_flight(load, demand, first)}"


def _predicted(load: Load, demand: Demand, first: Load) -> str:
    promised = f"{_ms(demand.token_time_s or 0.0)} a token"
    if load.iteration_s is None:
        words = f"nothing is known of its iterations, taken to meet {promised}"
    else:
        words = f"{_ms(load.iteration_s)} predicted, {'within' if _meets(load, demand) else 'over'} {promised}"
    return f"{words}; {_in_flight(load, demand, first)}"


def _packed(load: Load, demand: Demand, first: Load) -> str:
    return f"{'' if _meets(first, demand) else 'no backend meets it: '}{_predicted(load, demand, first)}"


def _starving(why: Callable[[Load, Demand, Load], str]) -> Callable[[Load, Demand, Load], str]:
    return lambda load, demand, first: f"{_count(load.starving, 'stream')} starving; {why(load, demand, first)}"


POLICIES: Final[Mapping[str, Policy]] = {
    "least_load": Policy(_least, ("tokens", "streams"), _in_flight),
    "spread": Policy(
        _spread, ("streams",), lambda load, _demand, _first: f"{_count(load.requests, 'stream')} in flight"
    ),
    "pack": Policy(
        _pack,
        ("misses", "tokens", "streams"),
        _packed,
        predicts=True,
        unpromised=Policy(_least, ("tokens", "streams"), _unpromised),
    ),
    "safest": Policy(
        _safest,
        ("starving", "iteration_seconds", "tokens", "streams"),
        _starving(_predicted),
        predicts=True,
        counts_starving=True,
        unpromised=Policy(_safest_unpromised, ("starving", "tokens", "streams"), _starving(_unpromised)),
    ),
    "round_robin": Policy(
        _turn,
        ("turn",),
        lambda load, _demand, _first: f"placement {load.turn} was its last" if load.turn else "no turn yet",
    ),
    "random": Policy(_turn, (), lambda _load, _demand, _first: "", Draw(1, "draw", "drawn at random")),
    "power_of_two": Policy(_least, ("tokens", "streams"), _in_flight, Draw(2, "not_drawn", "one of two drawn")),
    "lmetric": Policy(
        _lmetric,
        ("lmetric", "streams"),
        lambda load, demand, _first: (
            f"{_count(demand.tokens + load.prefill_tokens, 'token')} to prefill x a batch of {load.requests + 1}"
        ),
    ),
}
"""Policies by name. A new one needs an entry here and a row in docs/relay.md."""
DEFAULT: Final = "least_load"
POLYSERVE: Final = "polyserve"
"""The placement by tiers, which keeps state (`scheduling.polyserve`)."""


def _meets(load: Load, demand: Demand) -> bool:
    """Tell whether a backend keeps to the promised time per token; an unknown one counts as doing so."""
    return load.iteration_s is None or demand.token_time_s is None or load.iteration_s <= demand.token_time_s


def _ms(seconds: float) -> str:
    return f"{round(seconds * 1e3, 2):g} ms"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
