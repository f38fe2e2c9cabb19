"""Prompts made up from words: a function of seed and number, of a wanted length, without shared prefixes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

WORDS: Final = tuple(
    """
    able above across act add after again age ago agree air all allow almost alone along also always among and animal
    answer any appear area arm army around art ask away baby back bad ball bank base bear beat beauty bed been before
    began behind believe best better between big bird black blood blue board boat body bone book born both bottom
    bought box boy bread break bright bring broke brother brought brown build burn busy but buy call came camp can
    capital car card care carry case cat catch cause cell center certain chair chance change character charge check
    chief child choose church circle city claim class clean clear climb clock close clothes cloud coast coat cold
    color column come common company compare complete consider contain continue control cook cool copy corn corner
    correct cost cotton could count country course cover cow create crop cross crowd cry current cut dance dark day
    dead deal dear death decide deep degree depend describe desert design develop did die differ direct discuss
    distant divide doctor does dog dollar done door double down draw dream dress drink drive drop dry during each ear
    early earth ease east eat edge effect egg eight either electric element else end enemy energy engine enough enter
    equal even evening event ever every exact example except excite exercise expect experience eye face fact fair fall
    family famous far farm fast fat father favor fear feed feel feet fell felt few field fight figure fill final find
    fine finger finish fire first fish fit five
    """.split()  # noqa: SIM905  a list of words is read more easily as text
)
"""Common words, 256 of them: nearly every tokenizer has each, with the space before it, as one token."""
HEAD_WORDS: Final = 5
"""Words that number a prompt: 256^5 prompts differ."""
_CORPUS_WORDS: Final = 1 << 16
_SCATTER: Final = 2_654_435_761


@dataclass(frozen=True, slots=True)
class PromptLengths:
    """How many tokens the server counts for a prompt: `fixed` and `per_word` for each word, learned before the run."""

    fixed: float = 0.0
    per_word: float = 1.0

    def words(self, tokens: int) -> int:
        """Return the number of words, at least one, of a prompt of about `tokens` tokens."""
        return max(1, round((tokens - self.fixed) / self.per_word))


@dataclass(frozen=True, slots=True)
class PromptSpec:
    """What prompts are made of.

    `shared_prefix`: tokens that all begin with. `salt` is added to every number: a server that has cached the prompts
    of an earlier run knows none of these.
    """

    seed: int
    lengths: PromptLengths = PromptLengths()
    shared_prefix: int = 0
    salt: int = 0


class Prompts:
    """The prompts of a load.

    A prompt begins with `shared_prefix` tokens that all have, then with its number in words, the last digit first: two
    prompts of neighbouring numbers differ from there in their first word, any two in the first HEAD_WORDS. Shorter
    prompts are cut, and may be equal. The rest are words from one drawn text.
    """

    def __init__(self, spec: PromptSpec) -> None:
        draw = np.random.default_rng([spec.seed, len(WORDS)])
        drawn: list[int] = draw.integers(0, len(WORDS), _CORPUS_WORDS).tolist()
        self._text = [WORDS[place] for place in drawn]
        self._seed = spec.seed
        self._salt = spec.salt
        self._lengths = spec.lengths
        shared = spec.lengths.words(spec.shared_prefix) if spec.shared_prefix else 0
        self._shared = self._from(0, shared)

    def text(self, number: int, tokens: int) -> str:
        """Return the prompt of a request, of about `tokens` tokens."""
        rest = max(1, self._lengths.words(tokens) - len(self._shared))
        head = self._head(number)[:rest]
        start = ((number + self._salt) * _SCATTER + self._seed) % _CORPUS_WORDS
        return " ".join((*self._shared, *head, *self._from(start, rest - len(head))))

    def _head(self, number: int) -> list[str]:
        value, head = number + self._salt, []
        for _ in range(HEAD_WORDS):
            value, digit = divmod(value, len(WORDS))
            head.append(WORDS[digit])
        return head

    def _from(self, start: int, count: int) -> list[str]:
        """Return `count` words of the text from a place on; behind its end it begins again."""
        found = self._text[start : start + count]
        while len(found) < count:
            found += self._text[: count - len(found)]
        return found
