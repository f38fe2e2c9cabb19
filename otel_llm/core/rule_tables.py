"""Tables that say what a look at stream rules compares: a row a rule, and a row a term of its condition.

A condition is a conjunction of parts. Most parts are one comparison of one fact with a constant. A part with `||`, `!`
or a nested `&&` is several rows in postfix order: comparisons, and what joins the truths of those before.
"""

from __future__ import annotations

from typing import Final

ALWAYS: Final = -(2**63)
"""Before every instant."""
LOOK_EVERY_NS: Final = 100_000_000
"""How often what moves but not linearly is looked at, counted from the stream's commit."""

# Columns of a rule.
TERMS: Final = 0
"""Where its terms begin."""
STEPS: Final = 1
"""Where those begin that compare facts of deadlines; they stand last, and none is part of a longer part."""
TERMS_END: Final = 2
MAX_AGE_NS: Final = 3
"""How old its facts may be; NEVER: they do not age."""
NEEDS: Final = 4
"""Facts that it uses, of those that may be missing: a bit a fact, as `1 << FACT`."""
RULE_COLUMNS: Final = 5

# Columns of a term. The constant of a comparison with a double stands in an array of its own.
FACT: Final = 0
"""What is compared, or a joint."""
ORDER: Final = 1
"""In which order fact and constant must be: a union of LESS, EQUAL and GREATER."""
EDGE: Final = 2
"""An integer that it is compared with; of a length of time, ns that it first reaches or exceeds; of identity, a bit."""
SECOND_EDGE: Final = 3
"""Of a length of time and `==` or `!=`: ns that it first exceeds."""
SIZE: Final = 4
"""Rows of the part that begins here."""
TERM_COLUMNS: Final = 5

LESS: Final = 1
EQUAL: Final = 2
GREATER: Final = 4

# Facts. IDENTITY is not 0 where the term's bit is set.
IDENTITY: Final = 0
AGE: Final = 1
"""Lengths of time, linear between tokens: 1 to 6. All rise but the runway."""
GAP: Final = 2
FACT_AGE: Final = 3
IDLE: Final = 4
IDLE_DECODE: Final = 5
RUNWAY: Final = 6
TOKENS: Final = 7
"""Integers: 7 to 10."""
TOKENS_READ: Final = 8
DEADLINES: Final = 9
"""Facts of deadlines, which move by steps: 9 to 11."""
DEADLINE_MISSES: Final = 10
FLUIDITY: Final = 11
"""Doubles: 11 to 13."""
TTFT: Final = 12
RATE: Final = 13

# Joints of a part of several terms.
AND: Final = 14
OR: Final = 15
NOT: Final = 16

# What a look has to know of a rule's state on a stream.
INACTIVE: Final = 0
"""The rule is inactive on the stream."""
FIRING_FINAL: Final = 1
"""It fires, and no token that is still under way can refute that."""
FIRING_REFUTABLE: Final = 2
"""It fires, and a token that is still under way may refute that: nothing is to be done before one comes."""
BY_ENGINE: Final = 3
"""Anything else: the engine looks at it."""
