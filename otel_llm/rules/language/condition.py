"""A rule's condition: compiled once, evaluated at an instant, with the instants at which to evaluate it again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from otel_llm.core.rule_tables import POLL_EVERY_NS
from otel_llm.rules.language.arithmetic import Undefined
from otel_llm.rules.language.compile import Program, compile_expression
from otel_llm.rules.language.crossings import Motion, motion
from otel_llm.rules.language.facts import FACTS, SILENCE, Scope, in_scope
from otel_llm.rules.language.snapshot import READ, Snapshot
from otel_llm.rules.language.types import Typed, check

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from otel_llm.rules.language.tokens import Value

MOST_POLLS: Final = 3_000
"""The number of these evaluations in one stretch, the latest ones: five minutes of them."""


@dataclass(frozen=True, slots=True)
class Condition:
    """A checked and compiled condition; `text` as written, `canonical` independent of spelling.

    `ages`, `timed`: whether one of its facts is missing when it is old, or while a segment is missing.
    """

    text: str
    canonical: str
    program: Program
    motion: Motion
    ages: bool
    timed: bool
    _read: tuple[Callable[[Snapshot, int], Value | None], ...]

    @property
    def facts(self) -> tuple[str, ...]:
        """Return the names of its facts."""
        return self.program.facts

    def truth(self, snapshot: Snapshot, x_ns: int, max_age_ns: int | None = None) -> bool | None:
        """Evaluate at an instant; None if a fact is missing or the value does not exist.

        Without `max_age_ns` facts do not age: looking back, a fact known now counts as known then.
        """
        if self.timed and snapshot.has_gap:
            return None
        if max_age_ns is not None and self.ages and snapshot.age_ns(x_ns) > max_age_ns:
            return None
        return self.of_values([read(snapshot, x_ns) for read in self._read])

    def of_values(self, values: Sequence[Value | None]) -> bool | None:
        """Evaluate with these values of its facts; None if one is missing or the value does not exist."""
        # No fact is ever NaN: lengths are integers of ns, and no ratio is taken of nothing.
        if None in values:
            return None
        try:
            return bool(self.program.run(*values))
        except Undefined:
            return None

    def check_instants(self, snapshot: Snapshot, after_ns: int, until_ns: int) -> list[int]:
        """Return, sorted, the instants in (after, until] at which its truth may have changed."""
        instants = self.motion.instants(snapshot, after_ns, until_ns)
        if SILENCE in self.facts and after_ns < snapshot.last_byte_ns <= until_ns:
            instants = sorted({*instants, snapshot.last_byte_ns})  # the fact is missing before
        if self.motion.polled:
            # A commit that claims to be days old must not cost an evaluation for each 100 ms of them.
            first = next_poll_ns(snapshot.stream.commit_ns, max(after_ns, until_ns - MOST_POLLS * POLL_EVERY_NS))
            instants = sorted({*instants, *range(first, until_ns + 1, POLL_EVERY_NS)})
        return instants

    def flip_ns(
        self, snapshot: Snapshot, x_ns: int, until_ns: int, truth: bool | None, *, found: bool = False
    ) -> int | None:
        """Return the next instant in (x, until] at which, without a token, it may no longer be `truth`.

        `found`: an evaluation at one of its own instants has given this truth.
        """
        poll_ns = until_ns + 1
        if self.motion.polled and not (found and truth is True and self.motion.stays):
            poll_ns = min(poll_ns, next_poll_ns(snapshot.stream.commit_ns, x_ns))
        for instant in self.motion.instants(snapshot, x_ns, poll_ns - 1):
            if self.truth(snapshot, instant) is not truth:
                return instant
        return poll_ns if poll_ns <= until_ns else None


def condition(text: str, scope: Scope) -> Condition:
    """Check and compile a condition over the facts of a scope; raises ExpressionError."""
    typed = check(text, in_scope(scope))
    program = compile_expression(typed)
    facts = [FACTS[name] for name in program.facts]
    return Condition(
        text=text,
        canonical=canonical(typed),
        program=program,
        motion=motion(typed),
        ages=any(fact.ages for fact in facts),
        timed=any(fact.timed for fact in facts),
        _read=tuple(READ[fact.name] for fact in facts) if scope == "stream" else (),
    )


def identity_part(whole: Condition) -> Program | None:
    """Return the terms of a `&&` that depend on identity alone, which a stream never changes; None if none."""
    typed = whole.program.typed
    terms = typed.args if typed.op == "&&" else (typed,)
    fixed = tuple(term for term in terms if is_identity(term))
    if not fixed:
        return None
    return compile_expression(Typed("&&", "bool", typed.start, typed.end, fixed) if len(fixed) > 1 else fixed[0])


def read_facts(names: Iterable[str], snapshot: Snapshot, x_ns: int, max_age_ns: int | None) -> dict[str, Value | None]:
    """Return the facts of these names at an instant, None for a missing one; without `max_age_ns` they do not age."""
    old = max_age_ns is not None and snapshot.age_ns(x_ns) > max_age_ns
    found: dict[str, Value | None] = {}
    for name in names:
        fact = FACTS[name]
        missing = (fact.timed and snapshot.has_gap) or (fact.ages and old)
        found[name] = None if missing else snapshot.value(name, x_ns)
    return found


def canonical(typed: Typed) -> str:
    """Return a condition in the one form that spaces, parentheses and spellings of literals do not change."""
    if typed.op == "literal":
        return json.dumps(typed.value)
    if typed.op == "fact":
        return typed.name
    args = [canonical(arg) for arg in typed.args]
    if typed.op in ("!", "negate"):
        return f"({'!' if typed.op == '!' else '-'}{args[0]})"
    if typed.op == "in":
        return f"({args[0]} in [{', '.join(args[1:])}])"
    return f"({f' {typed.op} '.join(args)})"


def next_poll_ns(commit_ns: int, after_ns: int) -> int:
    """Return the first instant after another at which facts that change by steps are evaluated for a stream."""
    return commit_ns + ((after_ns - commit_ns) // POLL_EVERY_NS + 1) * POLL_EVERY_NS


def is_identity(typed: Typed) -> bool:
    """Tell whether an expression depends on identity alone, which a stream never changes."""
    names = compile_expression(typed).facts
    return bool(names) and all(not FACTS[name].ages and not FACTS[name].linear for name in names)
