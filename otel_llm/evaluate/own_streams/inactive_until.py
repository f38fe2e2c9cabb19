"""The instant up to which no rule of a stream can hold, whatever tokens follow: until then, tokens need no evaluation.

A token shortens a gap and a silence, lengthens a runway and adds no idle time; only time moves these facts the other
way. A term of a `&&` that bounds such a fact cannot begin to hold before the fact's present line crosses the bound.
That instant is computed, and the rule is evaluated there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_llm.rules.engine.state_machine import Phase
from otel_llm.slo.live.running import idle_ns, read_through_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import TypeAlias

    from otel_llm.evaluate.own_streams.own_stream import OwnStream
    from otel_llm.rules.engine.rule_state import RuleState
    from otel_llm.rules.files.ruleset import RuleSet
    from otel_llm.rules.language.crossings import Gate

    Opens: TypeAlias = Callable[[OwnStream, int], int]

NEVER: Final = 1 << 64
"""Later than any instant."""
_NOW: Final = 0


class InactiveUntil:
    """The computation of the instant up to which the rules of a set stay inactive on a stream."""

    def __init__(self, rules: RuleSet) -> None:
        self._bounds: dict[str, tuple[tuple[Opens, int], ...]] = {
            rule.name: () if rule.on_missing == "fire" else tuple(_bounds(rule.when.motion.gates))
            for rule in rules.stream_rules
        }

    def of(self, stream: OwnStream, states: Iterable[RuleState]) -> int:
        """Return the first instant (unix ns) at which one of these rules may hold; 0: at any.

        `states`: of the rules that apply to the stream.
        """
        until_ns = NEVER
        for state in states:
            if state.phase is not Phase.INACTIVE:
                return _NOW
            opens_ns = _NOW
            for opens, edge_ns in self._bounds[state.rule.name]:
                opens_ns = max(opens_ns, opens(stream, edge_ns))
            until_ns = min(until_ns, opens_ns)
        return until_ns


def _age(stream: OwnStream, edge_ns: int) -> int:
    return stream.stream.commit_ns + edge_ns


def _gap(stream: OwnStream, edge_ns: int) -> int:
    return stream.stream.last_ns + edge_ns


def _silence(stream: OwnStream, edge_ns: int) -> int:
    return max(stream.stream.last_ns, stream.last_byte_ns) + edge_ns


def _idle(stream: OwnStream, edge_ns: int) -> int:
    run = stream.stream.running
    return _NOW if idle_ns(run, stream.stream.commit_ns) >= edge_ns else run.allowance_ns + edge_ns


def _idle_decode(stream: OwnStream, edge_ns: int) -> int:
    run = stream.stream.running
    if not run.count:
        return _NOW  # the first token read moves the line
    zero_ns = read_through_ns(run)
    return _NOW if run.dry_ns - zero_ns >= edge_ns else zero_ns + edge_ns


def _runway(stream: OwnStream, edge_ns: int) -> int:
    run = stream.stream.running
    return run.dry_ns - edge_ns + 1 if run.count else _NOW  # the first token read moves the line


def _fact_age(stream: OwnStream, edge_ns: int) -> int:
    return NEVER if stream.ageless and edge_ns > 0 else stream.watermark_ns + edge_ns


_OPENS: Final[Mapping[tuple[str, bool], Opens]] = {
    ("age_seconds", True): _age,
    ("gap_seconds", True): _gap,
    ("silence_seconds", True): _silence,
    ("idle_seconds", True): _idle,
    ("idle_decode_seconds", True): _idle_decode,
    ("runway_seconds", False): _runway,
    ("fact_age_seconds", True): _fact_age,
}
"""The function of the first instant at which a bound may be crossed, by fact and whether it is bounded from below."""


def _bounds(gates: Iterable[Gate]) -> Iterable[tuple[Opens, int]]:
    for gate in gates:
        opens = _OPENS.get((gate.fact, gate.above))
        if opens is not None:
            yield opens, gate.edge_ns
