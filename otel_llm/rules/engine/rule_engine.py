"""The rule engine: a function of changes of streams and instants on one virtual clock; no clock is read, nothing sent.

Whoever drives it calls, for everything received at an instant t, in this order:

    advance(t - 1, views)    what was due before, by what was known before
    update(view, t)          for each stream that the batch changed, after the whole batch was applied to it
    ended(view, end, t)      instead, for each stream that it ended
    advance(t, views)        the rules are evaluated, at t

Between receipts `next_timer` says when to call `advance` next; called later, it gives the same decisions. So a
replay of the same records with the same receipt times decides the same.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import lru_cache
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_llm.rules.engine.decision_maker import Acting, Moment
from otel_llm.rules.engine.retry import Retry
from otel_llm.rules.engine.rule_state import (
    Cell,
    began_to_fire,
    begin_anew,
    identity_changed,
    is_asleep,
    look,
    next_due_ns,
    refuted,
)
from otel_llm.rules.engine.state_machine import Event, Output, State, step
from otel_llm.rules.language.condition import identity_part
from otel_llm.rules.language.snapshot import IDENTITY, Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from otel_llm.rules.decisions.decision_records import Decided, Decision
    from otel_llm.rules.files.ruleset import Rule, RuleSet
    from otel_llm.rules.language.compile import Program
    from otel_llm.rules.language.snapshot import StreamKey, StreamView
    from otel_llm.rules.language.tokens import Value

_IDENTITIES: Final = 4096
"""Of so many it is remembered which rules can hold for them: names are telemetry."""


@dataclass(slots=True)
class _Watched:
    """A stream that is followed; instants on the collector's axis.

    `changed_ns`: when it changed and was not looked at since; `due_ns`: when the next of its cells is due;
    `queued_ns`: for when it stands in the queue of timers, which may be too early.
    """

    key: StreamKey
    identity: tuple[Value, ...]
    cells: list[Cell]
    muted: bool = False
    """Only late segments have changed it since one was in time."""
    fired: bool = False
    suspended: bool = False
    """None of its rules is evaluated."""
    changed_ns: int | None = None
    due_ns: int | None = None
    queued_ns: int | None = None


class Looked(NamedTuple):
    """A stream that was looked at: its rules that can hold, whether any ever fired, whether nothing begins to fire."""

    key: StreamKey
    cells: list[Cell]
    fired: bool
    muted: bool


class RuleEngine:
    """Evaluate the stream rules of a set over in-flight streams.

    `decided`: decisions that stand in the decision file already; they are taken into account and not returned again,
    but handed to `again`.
    """

    def __init__(
        self,
        rules: RuleSet,
        decided: Collection[Decided] = (),
        again: Callable[[Decision], None] | None = None,
    ) -> None:
        self.rules = rules
        self._rules = [(rule, _identity_part(rule)) for rule in rules.stream_rules]
        self._applying = lru_cache(maxsize=_IDENTITIES)(self._rules_of)
        self.decided = frozenset(decided)
        self.acting = Acting(rules, self.decided, again)
        self._watched: dict[StreamKey, _Watched] = {}
        self._streams_of: Counter[tuple[bytes, bytes]] = Counter()
        self._changes: list[tuple[int, StreamKey]] = []
        self._timers: list[tuple[int, StreamKey]] = []
        self._looked: dict[StreamKey, _Watched] | None = None

    def update(
        self, view: StreamView, now_ns: int, *, late: bool = False, identity_since_ns: int | None = None
    ) -> None:
        """Note that a stream is new or has changed; the next `advance` looks at it, at its now.

        `late`: only segments older than the lateness have changed it. Nothing begins to fire then, until others come.
        `identity_since_ns`: since when its identity is what it is, on its own axis; from the commit on where None.
        """
        watched = self._watched.get(view.key) or self._watch(view)
        identity = _identity(view)
        if identity != watched.identity:
            if identity_since_ns is not None:
                pairs = zip(IDENTITY, watched.identity, identity, strict=True)
                changed = frozenset(name for name, old, new in pairs if old != new)
                for cell in watched.cells:
                    identity_changed(cell, changed, identity_since_ns)
            watched.identity = identity
            watched.cells = self._cells(view, watched.cells, identity_since_ns)
        if watched.suspended:
            return
        watched.muted = late and (watched.muted or watched.changed_ns is None)
        if watched.changed_ns != now_ns:
            watched.changed_ns = now_ns
            heappush(self._changes, (now_ns, view.key))

    def ended(self, view: StreamView, end_ns: int, now_ns: int) -> list[Decision]:
        """Follow a stream no longer, and resolve what fires; `end_ns` on the stream's axis."""
        watched = self._watched.get(view.key)
        if watched is None:
            return []
        decisions = self._close(watched.cells, view, end_ns, now_ns)
        self._forget(watched)
        return decisions

    def refuted(self, decision: Decision, now_ns: int) -> bool:
        """Note that an enforced action was given up for the stream had gone on; return whether that changes anything.

        What it spent of `per_request` is given back. While its firing goes on the action is due again at the first flip
        of `when`, from not holding to holding, after `now_ns` (the collector's axis); `advance` decides it then.
        `decision`: as it was returned. A second call for it, one for a request that is over or a rule that is no longer
        there changes nothing.
        """
        stream, place = decision.stream, decision.place
        if stream is None or place is None or not self._streams_of[stream[:2]]:
            return False
        if not self.acting.refuted(decision, stream[:2]):
            return False
        watched = self._watched.get(stream)
        for cell in () if watched is None else watched.cells:
            if cell.rule.hash != decision.rule_hash or cell.state is not State.FIRING:
                continue
            retries = {} if cell.retries is None else cell.retries
            retry = retries.get(place, Retry(cell.flip_ns))
            if watched is not None and retry.tried_ns == decision.flip_ns:
                retry.refute(now_ns)
                cell.retries = {**retries, place: retry}
                cell.due_ns = cell.flip_ns  # with the stream's next look, which is at `now_ns` at the latest
                watched.due_ns = now_ns if watched.due_ns is None else min(watched.due_ns, now_ns)
                self._enqueue(watched)
        return True

    def next_timer(self) -> int | None:
        """Return the next instant, on the collector's axis, at which something can change if nothing is received."""
        while self._timers:
            queued_ns, key = self._timers[0]
            watched = self._watched.get(key)
            if watched is not None and watched.queued_ns == watched.due_ns == queued_ns:
                break
            heappop(self._timers)
            if watched is not None and watched.queued_ns == queued_ns:
                watched.queued_ns = None
                self._enqueue(watched)
        queues = [queue[0][0] for queue in (self._changes, self._timers) if queue]
        return min(queues, default=None)

    def looked_at(self) -> list[Looked]:
        """Return the streams looked at since this was last asked; from the first time on they are noted."""
        if self._looked is None:
            self._looked = {}
            return []
        found = [Looked(key, one.cells, one.fired, one.muted) for key, one in self._looked.items()]
        self._looked.clear()
        return found

    def take_up(self, view: StreamView, at_ns: int, dues: Mapping[str, int | None]) -> None:
        """Follow a stream that somebody else has watched up to `at_ns`.

        `dues`: by rule the instant, on the stream's axis, at which it is next to be looked at if no token comes; None
        for none. Rules that it does not name are looked at when they would have been.
        """
        watched = self._watched.get(view.key) or self._watch(view)
        x_ns = max(at_ns + view.offset_ns, view.stream.last_ns)
        facts = None
        for cell in watched.cells:
            if cell.rule.name in dues:
                cell.due_ns = dues[cell.rule.name]
            else:
                facts = facts or Snapshot(view)
                truth = cell.rule.when.truth(facts, x_ns, cell.rule.max_fact_age_ns)
                cell.due_ns = next_due_ns(cell, facts, x_ns, truth, muted=False)
        self._plan(watched, view)

    def suspend(self, key: StreamKey) -> None:
        """Evaluate no rule of a stream until `begin_anew`; what fires goes on firing."""
        watched = self._watched.get(key)
        if watched is not None:
            watched.suspended = True
            watched.changed_ns = watched.due_ns = None

    def begin_anew(self, view: StreamView, now_ns: int) -> None:
        """Evaluate a stream, suspended or not, from now on: no rule looks back to what was before."""
        watched = self._watched.get(view.key) or self._watch(view)
        watched.suspended = False
        x_ns = max(now_ns + view.offset_ns, view.stream.last_ns)
        for cell in watched.cells:
            begin_anew(cell, x_ns)
        self.update(view, now_ns, identity_since_ns=x_ns)

    def drop(self, key: StreamKey) -> None:
        """Follow a stream no longer for which nothing ever fired; another `update` takes it up again."""
        watched = self._watched.get(key)
        if watched is not None:
            self._forget(watched)

    def succeed(self, former: RuleEngine, now_ns: int, views: Mapping[StreamKey, StreamView]) -> list[Decision]:
        """Take over from another engine what it knows of rules that mean the same; return how the others' firings end.

        Every stream that was followed is looked at at the next `advance`.
        """
        decisions: list[Decision] = []
        own = {rule.hash: rule for rule, _ in self._rules}
        for key, watched in former._watched.items():
            view = views.get(key)
            if view is None:
                continue
            gone = [cell for cell in watched.cells if cell.rule.hash not in own]
            decisions += former._close(gone, view, now_ns + view.offset_ns, now_ns)
            known = [replace(cell, rule=own[cell.rule.hash]) for cell in watched.cells if cell.rule.hash in own]
            taken = self._watch(view)
            taken.cells = self._cells(view, known)
            taken.fired, taken.muted, taken.suspended = watched.fired, watched.muted, watched.suspended
            self.update(view, now_ns, late=watched.muted)
        self.acting.succeed(former.acting)
        return decisions

    def pending(self, rule: str) -> list[tuple[StreamKey, int]]:
        """Return the streams on which a rule waits for its `for`, and since when it has held, on the stream's axis."""
        return [
            (watched.key, cell.run.start_ns)
            for watched in self._watched.values()
            for cell in watched.cells
            if cell.rule.name == rule and cell.state is State.PENDING and cell.run is not None
        ]

    def follows(self, key: StreamKey) -> bool:
        """Tell whether a stream is followed."""
        return key in self._watched

    def rest(self, key: StreamKey) -> None:
        """Look at a stream no more before its next `update`: somebody else sees to it that this comes in time."""
        watched = self._watched.get(key)
        if watched is not None:
            watched.due_ns = None

    def advance(self, now_ns: int, views: Mapping[StreamKey, StreamView]) -> list[Decision]:
        """Look at everything that is due up to now, in order of instant; a stream without a view is forgotten."""
        decisions: list[Decision] = []
        changes, timers = self._changes, self._timers
        while True:
            # At one instant a stream's change goes before its timer: it looks at all of its rules.
            queue = changes if changes and not (timers and timers[0] < changes[0]) else timers
            if not queue or queue[0][0] > now_ns:
                return decisions
            at_ns, key = heappop(queue)
            watched = self._watched.get(key)
            if watched is None or not self._is_due(watched, at_ns, changed=queue is changes):
                continue
            view = views.get(key)
            if view is None:
                self._forget(watched)
                continue
            decisions += self._look(watched, view, at_ns)
            self._enqueue(watched)
            if self._looked is not None:
                self._looked[key] = watched

    def _is_due(self, watched: _Watched, at_ns: int, *, changed: bool) -> bool:
        if changed:
            return watched.changed_ns == at_ns and not watched.suspended
        if watched.queued_ns != at_ns:
            return False
        watched.queued_ns = None
        if watched.suspended:
            return False
        if watched.due_ns == at_ns and watched.changed_ns is None:
            return True
        self._enqueue(watched)
        return False

    def _enqueue(self, watched: _Watched) -> None:
        due_ns = watched.due_ns if watched.changed_ns is None else None
        # An earlier entry stays: it is cheaper to be woken for nothing once than to queue anew with every segment.
        if due_ns is not None and (watched.queued_ns is None or due_ns < watched.queued_ns):
            watched.queued_ns = due_ns
            heappush(self._timers, (due_ns, watched.key))

    def _look(self, watched: _Watched, view: StreamView, now_ns: int) -> list[Decision]:
        x_ns = max(now_ns + view.offset_ns, view.stream.last_ns)
        at = Moment(Snapshot(view), x_ns, now_ns)
        decisions: list[Decision] = []
        for cell in watched.cells:
            if watched.changed_ns is None and (cell.due_ns is None or cell.due_ns > x_ns):
                continue
            if is_asleep(cell, at.facts, x_ns):
                cell.due_ns = None
                continue
            if cell.state is State.FIRING and refuted(cell, at.facts):
                decisions += self._take(cell, Event.REFUTED, cell.flip_ns, at)
            found = look(cell, at.facts, x_ns, muted=watched.muted)
            decisions += self._take(cell, found.event, found.since_ns, at)
            if cell.retries is not None:
                decisions += self._try_again(cell, found.truth, at)
            cell.due_ns = next_due_ns(cell, at.facts, x_ns, found.truth, muted=watched.muted)
            if cell.retries is not None:
                cell.due_ns = _from_refutation(cell, view, now_ns)
        watched.fired = watched.fired or bool(decisions) or any(cell.state is State.FIRING for cell in watched.cells)
        watched.changed_ns = None
        watched.due_ns = _earliest(watched.cells, view)
        return decisions

    def _plan(self, watched: _Watched, view: StreamView) -> None:
        watched.due_ns = _earliest(watched.cells, view)
        self._enqueue(watched)

    def _close(self, cells: list[Cell], view: StreamView, end_ns: int, now_ns: int) -> list[Decision]:
        """Resolve what fires; `end_ns` on the stream's axis."""
        firing = [cell for cell in cells if cell.state is State.FIRING]
        decisions: list[Decision] = []
        if firing:
            x_ns = max(end_ns, view.stream.last_ns)
            at = Moment(Snapshot(view), x_ns, now_ns)
            for cell in firing:
                wrong = refuted(cell, at.facts)
                # It may have begun to fire at an instant at which the stream was over, and nobody knew.
                event, since_ns = (Event.REFUTED, cell.flip_ns) if wrong else (Event.ENDED, max(x_ns, cell.flip_ns))
                decisions += self._take(cell, event, since_ns, at)
        return decisions

    def _take(self, cell: Cell, event: Event, since_ns: int, at: Moment) -> list[Decision]:
        """Make the transition; return the decisions that go with it."""
        cell.state, output = step(cell.state, event)
        if output is None:
            return []
        cell.retries = None
        if output is Output.FIRE:
            began_to_fire(cell, at.facts, since_ns)
            return self.acting.fire(cell, at)
        cell.floor_ns = max(cell.floor_ns, since_ns)
        cell.run = None
        return self.acting.close(cell, output, since_ns, at)

    def _try_again(self, cell: Cell, truth: bool | None, at: Moment) -> list[Decision]:
        """Decide the actions that were refuted and are due again; `truth`: that of `when` now."""
        decisions: list[Decision] = []
        for place, retry in sorted((cell.retries or {}).items()):
            if retry.refuted_ns is None or retry.refuted_ns > at.now_ns:
                continue
            flip_ns = retry.look(cell.rule, at.facts, at.x_ns, truth)
            if flip_ns is not None:
                retry.tried_again(flip_ns)
                decisions += self.acting.fire_again(cell, flip_ns, place, at)
        return decisions

    def _watch(self, view: StreamView) -> _Watched:
        watched = _Watched(view.key, _identity(view), self._cells(view, []))
        self._watched[view.key] = watched
        self._streams_of[view.key[:2]] += 1
        return watched

    def _cells(self, view: StreamView, known: list[Cell], since_ns: int | None = None) -> list[Cell]:
        """Make a cell for each rule that can ever hold for a stream of this identity; one that is at work stays.

        `since_ns`: what those that are new look back to at most; the commit where None.
        """
        applying = self._applying(_identity(view))
        floor_ns = view.stream.commit_ns if since_ns is None else since_ns
        if not known:
            return [Cell(rule, floor_ns) for rule in applying]
        cells = {cell.rule.name: cell for cell in known}
        found = []
        for rule, _ in self._rules:
            cell = cells.get(rule.name)
            applies = rule in applying
            if cell is not None and (applies or cell.state is not State.INACTIVE):
                found.append(cell)
            elif applies:
                found.append(Cell(rule, floor_ns))
        return found

    def _rules_of(self, identity: tuple[Value, ...]) -> list[Rule]:
        """Return the rules that can ever hold for a stream of this identity."""
        named = dict(zip(IDENTITY, identity, strict=True))
        return [
            rule for rule, part in self._rules if part is None or bool(part.run(*(named[name] for name in part.facts)))
        ]

    def _forget(self, watched: _Watched) -> None:
        del self._watched[watched.key]
        if self._looked is not None:
            self._looked.pop(watched.key, None)
        request = watched.key[:2]
        self._streams_of[request] -= 1
        if not self._streams_of[request]:
            del self._streams_of[request]
            self.acting.forget(request)


def _earliest(cells: list[Cell], view: StreamView) -> int | None:
    """Return when the first of the cells is due, on the collector's axis."""
    dues = [cell.due_ns for cell in cells if cell.due_ns is not None]
    return min(dues) - view.offset_ns if dues else None


def _from_refutation(cell: Cell, view: StreamView, now_ns: int) -> int | None:
    """Return when a cell is due, which is at the latest when a refutation that lies ahead is reached."""
    ahead = [retry.refuted_ns for retry in (cell.retries or {}).values() if retry.refuted_ns is not None]
    dues = [at_ns + view.offset_ns for at_ns in ahead if at_ns > now_ns]
    return min(dues if cell.due_ns is None else [*dues, cell.due_ns], default=None)


def _identity(view: StreamView) -> tuple[Value, ...]:
    return view.slo_class, view.model, view.instance, view.measured_at, view.exact_resume


def _identity_part(rule: Rule) -> Program | None:
    # A rule that fires on missing facts fires for streams of any identity.
    return None if rule.on_missing == "fire" else identity_part(rule.when)
