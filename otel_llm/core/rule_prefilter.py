"""The prefilter of stream rules: which may change their state now, and until when the others cannot without a token.

The facts are those of `otel_llm.rules.language.snapshot`, in the same integers of ns; thresholds are edges in whole ns,
computed when rules are loaded. A comparison of a missing fact is false. `x_ns` is the stream's now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_llm.core import rule_tables as table
from otel_llm.core import stream_columns as column
from otel_llm.core.kernel import called_by_kernels, kernel
from otel_llm.core.rule_tables import ALWAYS, POLL_EVERY_NS
from otel_llm.slo.live import columns as running
from otel_llm.slo.live.columns import NEVER, UNKNOWN
from otel_llm.slo.live.running import FACTS, deadlines, dry_ns, idle_ns, misses, read_through_ns

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]
    Floats = npt.NDArray[np.float64]
    Bools = npt.NDArray[np.bool_]
    Bytes = npt.NDArray[np.int8]


called_by_kernels(*FACTS, inline=True)


@kernel(inline=True)
def _reaches(fact: int, edge_ns: int, row: Ints) -> int:
    """Return the first instant at which a duration is at least the edge; for the runway: below it."""
    if fact == table.RUNWAY:
        return int(dry_ns(row)) - (edge_ns - 1)
    if fact == table.GAP:
        return int(row[column.LAST_NS]) + edge_ns
    if fact == table.SILENCE:
        return int(max(row[column.LAST_NS], row[column.LAST_BYTE_NS])) + edge_ns
    if fact == table.AGE:
        return int(row[running.COMMIT_NS]) + edge_ns
    if fact == table.FACT_AGE:
        return int(row[column.WATERMARK_NS]) + edge_ns
    if fact == table.IDLE:
        zero_ns = int(row[running.ALLOWANCE_NS])
        return ALWAYS if idle_ns(row, row[running.COMMIT_NS]) >= edge_ns else zero_ns + edge_ns
    if row[running.COUNT] == 0:  # idle time in mid-reply is 0 before the first token
        return ALWAYS if edge_ns <= 0 else NEVER
    zero_ns = int(read_through_ns(row))
    return ALWAYS if row[running.DRY_NS] - zero_ns >= edge_ns else zero_ns + edge_ns


@kernel(inline=True)
def _is_present(fact: int, row: Ints, x_ns: int) -> bool:
    """Return whether a fact is present, apart from its age."""
    if fact == table.TTFT:
        return bool(row[column.TOKENS] > 0)
    if fact == table.RATE:
        return bool(row[running.READ_LAST_NS] > row[running.READ_FIRST_NS])
    if fact == table.FLUIDITY:
        return bool(row[running.DUE_NS] != UNKNOWN) and deadlines(row, x_ns) > 0
    return bool(row[running.DUE_NS] != UNKNOWN) or (fact != table.DEADLINES and fact != table.DEADLINE_MISSES)


@kernel(inline=True)
def _integer(fact: int, row: Ints, x_ns: int) -> int:
    if fact == table.TOKENS:
        return int(row[column.TOKENS])
    if fact == table.TOKENS_READ:
        return int(row[running.COUNT])
    return int(deadlines(row, x_ns) if fact == table.DEADLINES else misses(row, x_ns))


@kernel(inline=True)
def _double(fact: int, row: Ints, x_ns: int) -> float:
    if fact == table.TTFT:
        return int(row[column.FIRST_NS] - row[running.COMMIT_NS]) / 1e9
    if fact == table.RATE:
        return int(row[running.COUNT] - 1) / (int(row[running.READ_LAST_NS] - row[running.READ_FIRST_NS]) / 1e9)
    due = int(deadlines(row, x_ns))
    return (due - int(misses(row, x_ns))) / due


@kernel(inline=True)
def _holds(term: Ints, constant: float, row: Ints, x_ns: int) -> bool:
    """Return whether the comparison of a fact that is not a duration holds."""
    fact = term[table.FACT]
    if fact == table.IDENTITY:
        return bool((row[column.IDENTITY] >> term[table.EDGE]) & 1 == 1)
    if not _is_present(fact, row, x_ns):
        return False
    if fact >= table.FLUIDITY:
        value = _double(fact, row, x_ns)
        less, greater = value < constant, value > constant
    else:
        number = _integer(fact, row, x_ns)
        less, greater = number < term[table.EDGE], number > term[table.EDGE]
    order = table.LESS if less else table.GREATER if greater else table.EQUAL
    return bool(term[table.ORDER] & order != 0)


@kernel(inline=True)
def _next_deadline(row: Ints, x_ns: int) -> int:
    """Return the first instant at which the next deadline is overdue."""
    due_ns, tbt_ns = int(row[running.DUE_NS]), int(row[running.TBT_NS])
    if due_ns == UNKNOWN:
        return NEVER
    if x_ns <= due_ns:
        return due_ns + 1
    return due_ns + ((x_ns - due_ns) // tbt_ns + 1) * tbt_ns


@kernel(inline=True)
def _step_from(instant_ns: int, row: Ints, x_ns: int) -> int:
    """Return the first step of POLL_EVERY_NS from the commit, not before `instant_ns`; unchanged if not after now."""
    if instant_ns <= x_ns or instant_ns == NEVER:
        return instant_ns
    commit_ns = int(row[running.COMMIT_NS])
    return commit_ns + -((commit_ns - instant_ns) // POLL_EVERY_NS) * POLL_EVERY_NS


@kernel(inline=True)
def _is_time(fact: int) -> bool:
    return table.AGE <= fact <= table.RUNWAY


@kernel(inline=True)
def _term_changes(term: Ints, row: Ints, x_ns: int) -> int:
    """Return the first instant after now at which a comparison may change."""
    fact = term[table.FACT]
    if _is_time(fact):
        found = _reaches(fact, term[table.EDGE], row)
        if found <= x_ns:
            found = NEVER
        if term[table.ORDER] == table.EQUAL or term[table.ORDER] == table.LESS | table.GREATER:
            second = _reaches(fact, term[table.SECOND_EDGE], row)
            if second > x_ns:
                found = min(found, second)
        return found
    if table.DEADLINES <= fact <= table.FLUIDITY:
        return _step_from(_next_deadline(row, x_ns), row, x_ns)
    return NEVER


@kernel(inline=True)
def _term_opens(term: Ints, constant: float, row: Ints, x_ns: int) -> int:
    """Return an instant not after now if a comparison holds, else the first at which it may; NEVER: at none."""
    fact, order = term[table.FACT], term[table.ORDER]
    if not _is_time(fact):
        if _holds(term, constant, row, x_ns):
            return ALWAYS
        return _next_deadline(row, x_ns) if table.DEADLINES <= fact <= table.FLUIDITY else NEVER
    first = _reaches(fact, term[table.EDGE], row)
    if order == table.EQUAL or order == table.LESS | table.GREATER:
        second = _reaches(fact, term[table.SECOND_EDGE], row)
        between = min(first, second) <= x_ns < max(first, second)
        return ALWAYS if between == (order == table.EQUAL) else _term_changes(term, row, x_ns)
    if (order & table.GREATER != 0) == (fact != table.RUNWAY):
        return first
    return ALWAYS if x_ns < first else NEVER


@kernel(inline=True)
def _part_changes(terms: Ints, at: int, row: Ints, x_ns: int) -> int:
    """Return the first instant after now at which a comparison of a part may change."""
    found = NEVER
    for index in range(at, at + terms[at, table.SIZE]):
        if terms[index, table.FACT] < table.AND:
            found = min(found, _term_changes(terms[index], row, x_ns))
    return found


@kernel(inline=True)
def _part_opens(terms: Ints, constants: Floats, at: int, row: Ints, x_ns: int) -> int:
    """Return an instant not after now if a part of a condition holds, else the first at which it may."""
    size = terms[at, table.SIZE]
    truths = 0  # a stack of bits, the last one lowest: conditions have 64 levels at most
    for index in range(at, at + size):
        fact = terms[index, table.FACT]
        if fact == table.NOT:
            truths ^= 1
        elif fact == table.AND:
            truths = truths >> 1 & (truths | ~1)
        elif fact == table.OR:
            truths = truths >> 1 | truths & 1
        else:
            opens_ns = _term_opens(terms[index], constants[index], row, x_ns)
            if size == 1:
                return opens_ns
            truths = truths << 1 | (opens_ns <= x_ns)
    return ALWAYS if truths == 1 else _part_changes(terms, at, row, x_ns)


@kernel(inline=True)
def _fresh_until(rule: Ints, row: Ints) -> int:
    return NEVER if rule[table.MAX_AGE_NS] == NEVER else int(row[column.WATERMARK_NS] + rule[table.MAX_AGE_NS])


@kernel(inline=True)
def _evaluate_inactive(rule: Ints, terms: Ints, constants: Floats, row: Ints, x_ns: int) -> tuple[bool, int]:
    """Return whether an inactive rule's condition may hold now, and, if it does not, when it may next."""
    opens_ns = ALWAYS
    at = rule[table.TERMS]
    while at < rule[table.TERMS_END]:
        part_ns = _part_opens(terms, constants, at, row, x_ns)
        if part_ns == NEVER:
            return False, NEVER  # the most frequent case, for example of rules on first tokens
        if at >= rule[table.STEPS]:
            part_ns = _step_from(part_ns, row, x_ns)
        opens_ns = max(opens_ns, part_ns)
        at += terms[at, table.SIZE]
    until_ns = _fresh_until(rule, row)
    if opens_ns <= x_ns:
        return x_ns <= until_ns, NEVER  # if all terms hold and a fact is too old, only a token can change that
    return False, NEVER if opens_ns > until_ns else opens_ns


@kernel(inline=True)
def _evaluate_firing(rule: Ints, terms: Ints, constants: Floats, row: Ints, x_ns: int) -> tuple[bool, int]:
    """Return whether a firing rule may stop firing now, and when it first may."""
    holds = True
    changes_ns = NEVER
    at = rule[table.TERMS]
    while at < rule[table.TERMS_END]:
        holds &= _part_opens(terms, constants, at, row, x_ns) <= x_ns
        changes_ns = min(changes_ns, _part_changes(terms, at, row, x_ns))
        at += terms[at, table.SIZE]
    until_ns = _fresh_until(rule, row)
    if changes_ns > until_ns:
        changes_ns = NEVER
    if holds or x_ns > until_ns:
        return False, changes_ns
    for fact in range(table.DEADLINES, table.RATE + 1):
        if rule[table.NEEDS] >> fact & 1 == 1 and not _is_present(fact, row, x_ns):
            return False, changes_ns  # a firing continues while a fact is missing
    return True, changes_ns


@kernel(
    "int64(int64[:, ::1], int64[:, ::1], float64[::1], int64[:, ::1], int8[:, ::1], int64[::1], int64[::1],"
    " int64[::1], boolean[::1], boolean[:, ::1], int64[:, ::1])"
)
def evaluate(
    rules: Ints,
    terms: Ints,
    constants: Floats,
    rows: Ints,
    states: Bytes,
    due_ns: Ints,
    slots: Ints,
    at_ns: Ints,
    unchanged: Bools,
    may_change: Bools,
    opens_ns: Ints,
) -> int:
    """Evaluate all rules of some streams, each at its own instant; return the earliest next instant.

    Args:
        rules, terms, constants: the tables of `rule_tables`.
        rows: (R, WIDTH), the columns of all streams.
        states: (R, rules), INACTIVE, FIRING_FINAL or FIRING_REFUTABLE.
        due_ns: (R,), written at `slots`: the next evaluation, on the collector's clock; NEVER unless unchanged.
        slots: (S,), of the streams to evaluate.
        at_ns: (S,), their instants, on the collector's clock.
        unchanged: (S,), written: whether no rule's state may change now.
        may_change: (S, rules), written: whether a rule's state may change now.
        opens_ns: (S, rules), written: when a rule's state may change next, on the stream's clock.
    """
    earliest_ns = NEVER
    for index in range(len(slots)):
        slot = slots[index]
        row = rows[slot]
        x_ns = max(int(at_ns[index] + row[column.OFFSET_NS]), int(row[column.LAST_NS]))
        news = row[column.TOKENS] != row[column.KNOWN_TOKENS] or row[column.LAST_BYTE_NS] != row[column.KNOWN_BYTE_NS]
        none_may = True
        next_ns = NEVER
        for number in range(len(rules)):
            if states[slot, number] == table.INACTIVE:
                may, next_of_rule_ns = _evaluate_inactive(rules[number], terms, constants, row, x_ns)
            else:
                may, next_of_rule_ns = _evaluate_firing(rules[number], terms, constants, row, x_ns)
                may |= states[slot, number] == table.FIRING_REFUTABLE and news
            may_change[index, number] = may
            opens_ns[index, number] = next_of_rule_ns
            none_may &= not may
            next_ns = min(next_ns, next_of_rule_ns)
        if none_may and next_ns != NEVER:
            next_ns -= int(row[column.OFFSET_NS])
        else:
            next_ns = NEVER
        unchanged[index] = none_may
        due_ns[slot] = next_ns
        earliest_ns = min(earliest_ns, next_ns)
    return earliest_ns
