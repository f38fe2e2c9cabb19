"""What a process has learned of the chunks of a model: how many characters a token has, and whether chunks are tokens.

A reply that states its length at the end teaches it, for the replies after it. It is kept in the process alone.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from otel_llm.export import threads
from otel_llm.instrumentation.segments.count_check import CountCheck
from otel_llm.instrumentation.segments.text_size import CLASSES, by_class

CHARACTERS_A_TOKEN: Final = (3.7, 3.4, 1.95, 2.95, 1.0)
"""Characters of a token by class of script, while nothing is known.

Measured with the tokenizer o200k on translated texts, prose and code: the middle of the range of each class.
"""
SCALES: Final = (0.2, 2.0)
"""How far learned characters of a token may be from those: tokenizers differ by less, other numbers are no counts."""
PRIOR_TOKENS: Final = 50
"""The tokens that a class's first guess is worth: one short reply does not upset it."""
MEMORY_TOKENS: Final = 20_000
"""The tokens after which what was learned fades."""
LEAST_TOKENS: Final = 8
"""The shortest reply that shows whether chunks are tokens."""
ONE_EACH_WITHIN: Final = 0.05
"""The relative difference of a reply's tokens and chunks if each chunk is one token."""
UNSEEN_TOKENS: Final = 2
"""Tokens without text that a server may count beside: the end of a turn, and one before the text."""
DOMINANT: Final = 0.7
"""The part of a reply's tokens that must be of one class of script for the reply to teach that class."""
MOST_MODELS: Final = 256


class ModelChunks:
    """What is known of the chunks of one model at one server."""

    __slots__ = ("_chars", "_one_each", "_several", "_tokens", "check")

    def __init__(self) -> None:
        self.check = CountCheck()
        self._chars = [PRIOR_TOKENS * each for each in CHARACTERS_A_TOKEN]
        self._tokens = [float(PRIOR_TOKENS)] * len(CLASSES)
        self._one_each = self._several = 0.0  # tokens of replies that showed it

    @property
    def learned(self) -> bool:
        """Return whether a reply has shown anything."""
        return self.one_each is not None

    @property
    def one_each(self) -> bool | None:
        """Return whether each chunk is one token, None if that is not known."""
        if not self._one_each + self._several:
            return None
        return self._one_each > self._several

    def tokens_a_character(self) -> tuple[float, ...]:
        """Return the tokens of a character, by class of script."""
        return tuple(tokens / chars for chars, tokens in zip(self._chars, self._tokens, strict=True))

    def learn(self, size: int, chunks: int, tokens: int) -> None:
        """Learn from a whole reply: the size of its text, its number of chunks and its stated tokens."""
        if tokens >= LEAST_TOKENS:
            one_each = abs(tokens - chunks) <= max(UNSEEN_TOKENS, ONE_EACH_WITHIN * tokens)
            self._one_each = _faded(self._one_each, tokens) + one_each * tokens
            self._several = _faded(self._several, tokens) + (not one_each) * tokens
        chars = by_class(size)
        each = [count * rate for count, rate in zip(chars, self.tokens_a_character(), strict=True)]
        guessed = sum(each)
        one = max(CLASSES, key=each.__getitem__)
        own = tokens - (guessed - each[one])
        if not guessed or each[one] < DOMINANT * guessed or own <= 0:
            return
        least, most = (scale * CHARACTERS_A_TOKEN[one] for scale in SCALES)
        if least <= chars[one] / own <= most:
            self._chars[one] = _faded(self._chars[one], own) + chars[one]
            self._tokens[one] = _faded(self._tokens[one], own) + own


def _faded(amount: float, by_tokens: float) -> float:
    return float(amount * 0.5 ** (by_tokens / MEMORY_TOKENS))


class KnownModels:
    """What is known of every model, by server and model; those that were not used for longest are forgotten."""

    def __init__(self, most: int = MOST_MODELS) -> None:
        self._most = most
        self._models: OrderedDict[tuple[str, str], ModelChunks] = OrderedDict()
        self._lock = threads.lock()

    def off(self) -> list[tuple[str, str, float]]:
        """Return the models whose recorded tokens are not those that replies state: server, model, how many times."""
        with self._lock:
            found = [(*key, one.check.times) for key, one in self._models.items()]
        return [(server, model, times) for server, model, times in found if times is not None]

    def of(self, server: str, model: str) -> ModelChunks:
        """Return what is known of a model at a server, to be read and to be taught."""
        key = (server, model)
        with self._lock:
            found = self._models.get(key)
            if found is None:
                found = self._models[key] = ModelChunks()
                if len(self._models) > self._most:
                    self._models.popitem(last=False)
            else:
                self._models.move_to_end(key)
            return found
