"""The state of one rule on one stream, and its evaluation: the event, its instant, the next due instant."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_llm.rules.engine.history import run_start, snapshot_at
from otel_llm.rules.engine.state_machine import Event, Phase, step
from otel_llm.rules.language.facts import SILENCE

if TYPE_CHECKING:
    from otel_llm.rules.files.ruleset import Rule
    from otel_llm.rules.language.snapshot import Snapshot

_FAR_NS: Final = 10**15
"""How far ahead flips are computed for facts that do not age: eleven days."""


class Run(NamedTuple):
    """The instant since which `when` has had a value, and the instant until which that is known.

    `final_ns`: up to it the value stays whatever arrives, since the facts of then cannot be read any more.
    """

    value: bool
    start_ns: int
    known_ns: int
    final_ns: int = 0


@dataclass(slots=True)
class RuleState:
    """One rule on one stream; instants on the stream's own axis.

    `floor_ns`: nothing is traced back before it (the commit, the last change of state that was recorded);
    `flip_known`: the tokens and the newest byte known to have arrived by the flip, None once nothing can arrive there
    any more; `due_ns`: when to look again if no segment arrives.
    """

    rule: Rule
    floor_ns: int
    phase: Phase = Phase.INACTIVE
    run: Run | None = None
    missing: bool = False
    flip_ns: int = 0
    flip_known: tuple[int, int] | None = None
    due_ns: int | None = None


class Found(NamedTuple):
    """The result of an evaluation: the event, the first instant of the state that it leads to, the truth of `when`."""

    event: Event
    since_ns: int
    truth: bool | None


def stays_inactive(state: RuleState, now: Snapshot, x_ns: int) -> bool:
    """Tell cheaply that an inactive rule stays so until the next segment, as nearly always on a healthy stream."""
    rule, when = state.rule, state.rule.when
    if state.phase is not Phase.INACTIVE or rule.on_missing != "hold" or not when.ages:
        return False
    return when.motion.is_shut(now, x_ns, now.watermark_ns + rule.max_fact_age_ns)


def begin_anew(state: RuleState, x_ns: int) -> None:
    """Look back no further than this instant from now on, since earlier facts are not known; firings go on."""
    state.phase, _ = step(state.phase, Event.CLEAR)
    state.floor_ns = max(state.floor_ns, x_ns)
    state.run, state.missing, state.flip_known = None, False, None


def identity_changed(state: RuleState, names: frozenset[str], since_ns: int) -> None:
    """Look back with the facts of these names no further than `since_ns`, the instant of their last change.

    The earlier truth of `when` stays as it was found.
    """
    if names.isdisjoint(state.rule.facts):
        return
    state.floor_ns = max(state.floor_ns, since_ns)
    if state.run is not None:
        final_ns = max(state.run.known_ns, since_ns)
        state.run = state.run._replace(known_ns=final_ns, final_ns=final_ns)


def evaluate(state: RuleState, now: Snapshot, x_ns: int, *, muted: bool) -> Found:
    """Evaluate a rule on a stream's facts at its now; with `muted` nothing begins to fire."""
    rule = state.rule
    truth = rule.when.truth(now, x_ns, rule.max_fact_age_ns)
    if truth is None and rule.on_missing == "hold":
        return Found(Event.MISSING, x_ns, None)
    holds = rule.on_missing == "fire" if truth is None else truth
    if holds is (state.phase is Phase.FIRING):
        # Nothing depends on when this run began.
        state.run, state.missing = None, truth is None
        return Found(Event.HOLDS if holds else Event.CLEAR, x_ns, truth)
    state.run = run = _run(state, now, x_ns, holds, missing=truth is None)
    state.missing = truth is None
    if holds:
        flip_ns = run.start_ns + rule.for_ns
        return Found(Event.DUE if flip_ns <= x_ns and not muted else Event.HOLDS, flip_ns, truth)
    resolved_ns = _resolved_ns(state, now, x_ns, run.start_ns + rule.keep_firing_for_ns)
    if resolved_ns is None:
        return Found(Event.CLEAR, x_ns, truth)
    return Found(Event.RESOLVED, resolved_ns, truth)


def byte_came(state: RuleState, byte_ns: int) -> None:
    """Note a newer byte: what was found of a condition on the silence until then stays, later findings may not."""
    if SILENCE in state.rule.facts and state.run is not None:
        final_ns = max(state.run.final_ns, byte_ns)
        state.run = state.run._replace(known_ns=final_ns, final_ns=final_ns)


def refuted(state: RuleState, now: Snapshot) -> bool:
    """Tell whether `when` did not hold at the flip, by the tokens and bytes up to it that are known now."""
    if state.flip_known is None:
        return False
    known = _known_by(state.flip_ns, now, state.flip_known[1])
    truth = None
    if known != state.flip_known:
        truth = state.rule.when.truth(snapshot_at(now, state.flip_ns, known[1]), state.flip_ns)
        if truth is None:
            return False
    state.flip_known = None if now.watermark_ns >= state.flip_ns else known
    return truth is False


def began_to_fire(state: RuleState, now: Snapshot, flip_ns: int) -> None:
    """Note the flip, and whether what is still on its way can refute it."""
    state.flip_ns = state.floor_ns = flip_ns
    final = state.missing or now.watermark_ns >= flip_ns
    state.flip_known = None if final else _known_by(flip_ns, now, 0)


def _known_by(flip_ns: int, now: Snapshot, byte_ns: int) -> tuple[int, int]:
    """Return the events up to a flip, and the newest known byte that is not after it; `byte_ns`: an earlier one."""
    newest_ns = now.view.last_byte_ns
    return bisect_right(now.stream.times_ns, flip_ns), newest_ns if newest_ns <= flip_ns else byte_ns


def next_due_ns(state: RuleState, now: Snapshot, x_ns: int, truth: bool | None, *, muted: bool) -> int | None:
    """Return the next instant after x at which, without a segment, the state may change; None if at none."""
    rule, when, run = state.rule, state.rule.when, state.run
    gone = when.timed and now.has_gap
    until_ns = now.watermark_ns + rule.max_fact_age_ns if when.ages and not now.ageless else x_ns + _FAR_NS
    dues: list[int | None] = []
    if not gone and x_ns < until_ns:
        dues.append(when.flip_ns(now, x_ns, until_ns, truth, found=state.phase is not Phase.INACTIVE))
    if not gone and when.ages and not now.ageless and rule.on_missing != "hold":
        dues.append(_within(until_ns + 1, x_ns, until_ns + 1))
    # Under `hold` nothing changes once the facts are missing; under the other two time goes on.
    last_ns = until_ns if rule.on_missing == "hold" and not gone else x_ns + _FAR_NS
    if state.phase is Phase.PENDING and run is not None and not muted and not (gone and rule.on_missing == "hold"):
        dues.append(_within(run.start_ns + rule.for_ns, x_ns, last_ns))
    if state.phase is Phase.FIRING and truth is not True:
        if run is not None:
            dues.append(_within(run.start_ns + rule.keep_firing_for_ns, x_ns, last_ns))
        resolve = rule.resolve_when
        if resolve is not None and not (resolve.timed and now.has_gap):
            ages = resolve.ages and not now.ageless
            fresh_ns = now.watermark_ns + rule.max_fact_age_ns if ages else x_ns + _FAR_NS
            if x_ns < fresh_ns:
                dues.append(resolve.flip_ns(now, x_ns, fresh_ns, resolve.truth(now, x_ns)))
    return min((due for due in dues if due is not None), default=None)


def _run(state: RuleState, now: Snapshot, x_ns: int, value: bool, *, missing: bool) -> Run:
    """Return since when `when`, or its value by `on_missing`, has had its present value."""
    rule, run = state.rule, state.run
    same = run if run is not None and run.value is value else None
    known_ns, final_ns = min(now.watermark_ns, x_ns), 0
    if missing:
        stale_ns = now.watermark_ns + rule.max_fact_age_ns + 1
        went_ns = stale_ns if rule.when.ages and state.floor_ns <= stale_ns <= x_ns else x_ns
        start_ns, known_ns, final_ns = went_ns if same is None else same.start_ns, x_ns, x_ns
    elif state.missing:
        # A judgement made while facts were missing stays up to now; later knowledge can only reach further back.
        start_ns, known_ns, final_ns = x_ns, x_ns, x_ns
        if same is not None:
            real_ns = run_start(rule.when, now, x_ns, value=value, floor_ns=state.floor_ns)
            start_ns = min(same.start_ns, real_ns)
    elif same is not None and same.start_ns <= same.known_ns:
        # Up to what was known at the last evaluation nothing can have changed.
        start_ns = run_start(rule.when, now, x_ns, value=value, floor_ns=same.known_ns)
        if start_ns <= same.known_ns:
            start_ns, known_ns, final_ns = same.start_ns, max(same.known_ns, known_ns), same.final_ns
    else:
        start_ns = run_start(rule.when, now, x_ns, value=value, floor_ns=state.floor_ns)
    return Run(value, start_ns, known_ns, final_ns)


def _resolved_ns(state: RuleState, now: Snapshot, x_ns: int, ready_ns: int) -> int | None:
    """Return since when a firing rule, `when` not holding, is resolved: not before `ready_ns`; None if it is not."""
    resolve = state.rule.resolve_when
    if x_ns < ready_ns:
        return None
    if resolve is None:
        return ready_ns
    if not resolve.truth(now, x_ns, state.rule.max_fact_age_ns):
        return None
    return max(ready_ns, run_start(resolve, now, x_ns, value=True, floor_ns=state.floor_ns))


def _within(instant_ns: int, after_ns: int, until_ns: int) -> int | None:
    return instant_ns if after_ns < instant_ns <= until_ns else None
