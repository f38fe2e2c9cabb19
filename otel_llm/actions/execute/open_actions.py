"""The actions that are open, from the moment that they are taken until they are completed, once. No I/O, no clock.

Both dispatchers keep theirs here: the collector's, whose threads send actions, and the relay's, in its event loop. The
shell brings the clock, the lock or loop, and what does an action. Here is what may be open beside what, what the end of
a firing or a stream withdraws, and which outcomes there were.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

    from otel_llm.rules.decisions.decision_records import Decision, Migration, Outcome

CONFIRMATION: Final = "confirmation"
"""The name of the limit, beside those of the budget, that allows one open action an instance."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Completion:
    """The result of an action.

    `open_elsewhere`: it was not begun since another is open for its instance; `migration`: the details of a `migrate`.
    """

    outcome: Outcome
    detail: str = ""
    open_elsewhere: bool = False
    migration: Migration | None = None


@dataclass(slots=True, eq=False)
class OpenAction(Generic[T]):
    """One open action.

    `what`: what the shell needs to do it; `tenant`: whose it is; `exclusive`: the names of what no other action may be
    open for meanwhile; `about`: the firing that caused it, and the stream whose end completes it; `sent`: it can be
    withdrawn no more.
    """

    id: str
    what: T
    completed: Callable[[Completion], None]
    tenant: str = ""
    exclusive: Sequence[tuple[str, Hashable]] = ()
    about: Sequence[Hashable] = ()
    sent: bool = False


@dataclass(slots=True)
class OpenActions(Generic[T]):
    """The table of open actions; its owner calls it from one thread at a time."""

    outcomes: Counter[str] = field(default_factory=Counter)
    _open: dict[str, OpenAction[T]] = field(default_factory=dict)
    _open_of: Counter[str] = field(default_factory=Counter)
    _busy: dict[tuple[str, Hashable], str] = field(default_factory=dict)
    _about: dict[Hashable, dict[str, None]] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of open actions."""
        return len(self._open)

    def __iter__(self) -> Iterator[OpenAction[T]]:
        """Return those that are open now."""
        return iter(list(self._open.values()))

    @property
    def is_idle(self) -> bool:
        """Tell whether none is open, and nothing is kept of those that were."""
        return not (self._open or self._busy or self._about or +self._open_of)

    def of_tenant(self, tenant: str) -> int:
        """Return how many of a tenant's are open."""
        return self._open_of[tenant]

    def refusal(self, action_id: str, exclusive: Iterable[tuple[str, Hashable]]) -> Completion | None:
        """Return why an action may not be opened now: it is open, or another holds what it needs."""
        if action_id in self._open:
            return Completion("failed", "this very action is open already")
        for name in exclusive:
            if (other := self._busy.get(name)) is not None:
                return Completion("budget", f"{other} is open for this {name[0]}", open_elsewhere=True)
        return None

    def open(self, action: OpenAction[T]) -> None:
        """Add an action that has no `refusal`."""
        self._open[action.id] = action
        self._open_of[action.tenant] += 1
        self._busy.update(dict.fromkeys(action.exclusive, action.id))
        for about in action.about:
            self._about.setdefault(about, {})[action.id] = None

    def get(self, action_id: str) -> OpenAction[T] | None:
        """Return an open action; None for one that was completed."""
        return self._open.get(action_id)

    def holder(self, name: tuple[str, Hashable]) -> OpenAction[T] | None:
        """Return the open action for which no other may be open."""
        action_id = self._busy.get(name)
        return None if action_id is None else self._open[action_id]

    def concerns(self, about: Hashable) -> bool:
        """Tell whether an open action is about a firing or a stream."""
        return about in self._about

    def of(self, about: Hashable) -> list[OpenAction[T]]:
        """Return the open actions about a firing or a stream, oldest first."""
        return [self._open[action_id] for action_id in self._about.get(about, ())]

    def close(self, action_id: str, outcome: Outcome, *, unsent: bool = False) -> OpenAction[T] | None:
        """Remove an action and count its outcome; return it, for its owner to call `completed`.

        None if it was completed before or, with `unsent`, if it was sent meanwhile.
        """
        one = self._open.get(action_id)
        if one is None or (unsent and one.sent):
            return None
        del self._open[action_id]
        self._open_of[one.tenant] -= 1
        if not self._open_of[one.tenant]:
            del self._open_of[one.tenant]
        for name in one.exclusive:
            del self._busy[name]
        for about in one.about:
            del self._about[about][action_id]
            if not self._about[about]:
                del self._about[about]
        self.outcomes[outcome] += 1
        return one


def completed_decision(decision: Decision, completed: Completion) -> Decision:
    """Return the decision as it is recorded: with the result of its action."""
    budget = {**decision.budget, CONFIRMATION: False} if completed.open_elsewhere else decision.budget
    findings = {} if completed.migration is None else completed.migration.record()
    if completed.detail:
        findings["detail"] = completed.detail
    return replace(decision, outcome=completed.outcome, budget=budget, findings=findings)
