"""The tables of stream rules for the prefilter: a row for each rule, and a row for each term of its condition.

A condition is a conjunction of parts. Most parts are one comparison of a fact with a constant. A part with `||`, `!` or
a nested `&&` is several rows in postfix order: comparisons, and operators on the results before them.

To add a fact of a stream, give it a number in the range of its kind below (these must stay contiguous; the operators
follow the last fact), and read it from a row in `rule_prefilter.py`: `_is_present`, and `_reaches`, `_integer` or
`_double`. `_evaluate_firing` has the first and last number of facts that may be missing. `Rows` in
`tests/rules/drawn_streams.py` fills the columns that tests read.
"""

from __future__ import annotations

from typing import Final

ALWAYS: Final = -(2**63)
"""Before every instant."""
POLL_EVERY_NS: Final = 100_000_000
"""The step of evaluations of facts that do not change linearly, counted from the stream's commit."""

# Columns of a rule.
TERMS: Final = 0
"""The index of its first term."""
STEPS: Final = 1
"""The index of its first term on deadlines; these are last, and each is a part of its own."""
TERMS_END: Final = 2
MAX_AGE_NS: Final = 3
"""The maximal age of its facts; NEVER: they do not age."""
NEEDS: Final = 4
"""The facts that it uses and that may be missing: a bit for each, `1 << FACT`."""
RULE_COLUMNS: Final = 5

# Columns of a term. Constants of comparisons with doubles are in a separate array.
FACT: Final = 0
"""The compared fact, or an operator."""
ORDER: Final = 1
"""The required order of fact and constant: a union of LESS, EQUAL and GREATER."""
EDGE: Final = 2
"""The integer to compare with; for a duration, the ns that it first reaches or exceeds; for identity, a bit."""
SECOND_EDGE: Final = 3
"""For a duration with `==` or `!=`: the ns that it first exceeds."""
SIZE: Final = 4
"""The number of rows of the part that begins here."""
TERM_COLUMNS: Final = 5

LESS: Final = 1
EQUAL: Final = 2
GREATER: Final = 4

# Facts. IDENTITY is not 0 if the term's bit is set.
IDENTITY: Final = 0
AGE: Final = 1
"""Durations, linear between tokens: 1 to 7. All rise except the runway."""
GAP: Final = 2
SILENCE: Final = 3
FACT_AGE: Final = 4
IDLE: Final = 5
IDLE_DECODE: Final = 6
RUNWAY: Final = 7
TOKENS: Final = 8
"""Integers: 8 to 11."""
TOKENS_READ: Final = 9
DEADLINES: Final = 10
"""Facts of deadlines, which change in steps: 10 to 12."""
DEADLINE_MISSES: Final = 11
FLUIDITY: Final = 12
"""Doubles: 12 to 14."""
TTFT: Final = 13
RATE: Final = 14

# Operators of a part of several terms.
AND: Final = 15
OR: Final = 16
NOT: Final = 17

# The states of a rule on a stream, for the prefilter.
INACTIVE: Final = 0
"""The rule is inactive on the stream."""
FIRING_FINAL: Final = 1
"""It fires, and no token that may still arrive can refute that."""
FIRING_REFUTABLE: Final = 2
"""It fires, and a token that may still arrive can refute that: it needs evaluation only at the next token."""
BY_ENGINE: Final = 3
"""Any other state: the engine evaluates it."""
