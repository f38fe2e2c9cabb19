"""Estimate the tokens of chunks that a server does not count, from the size of their text. Keeps no text."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Final

from otel_llm.instrumentation.segments.model_chunks import ModelChunks
from otel_llm.instrumentation.segments.text_size import ASCII, ASCII_ALONE, by_class

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ONE_BELOW: Final = 1.6
"""Estimated tokens a chunk, on average, below which a chunk is one token while nothing is known of the model."""
FIRST_CHUNKS, FIRST_BELOW = 8, 3.0
"""Each of this many first chunks is one token if it is estimated below this bound: a short average says little."""
ONE_EACH_BELOW: Final = 2.0
"""The same average for a model whose chunks were shown to be tokens."""
MOST_A_CHUNK: Final = 10_000
"""The most tokens of a chunk that are estimated, or believed if nothing shows its bytes: twenty segments, and more
than is read meanwhile."""
_ROUNDING: Final = 1e-9


class TokenEstimate:
    """The estimate for one stream of a model.

    `chunks` and `size` are those so far, `kinds` the kinds of their text. `one_each`: every chunk was one token so far.
    `learned`: something was known of the model when the stream began.
    """

    __slots__ = (
        "_below",
        "_estimated",
        "_first",
        "_mean",
        "_rates",
        "_reported",
        "chunks",
        "kinds",
        "learned",
        "model",
        "one_each",
        "size",
    )

    def __init__(self, model: ModelChunks) -> None:
        known = model.one_each
        self.model = model
        self.learned = model.learned
        self.one_each = True
        self.chunks = self.size = 0
        self.kinds: set[int] = set()
        self._rates = model.tokens_a_character()
        self._below = ONE_BELOW if known is None else ONE_EACH_BELOW if known else 0.0
        self._first = FIRST_CHUNKS if known is None else 0
        self._mean = 0.0  # estimated tokens of all chunks
        self._estimated: dict[int, float] = {}  # tokens by kind, of the chunks that were not taken for one
        self._reported: dict[int, int] = {}  # and the tokens that these were counted as

    def counts(self, kind: int, sizes: Sequence[int]) -> list[int]:
        """Return the tokens of further chunks with text of a kind: their sizes are above 0."""
        if self.one_each and self._stay_tokens(sizes):
            self.kinds.add(kind)
            return [1] * len(sizes)
        rate, below, first = self._rates[ASCII], self._below, self._first
        chunks, mean = self.chunks, self._mean
        counts = []
        for size in sizes:
            tokens = size * rate if size < ASCII_ALONE else self._tokens(size)
            chunks += 1
            mean += tokens
            self.size += size
            if mean < below * chunks or (chunks <= first and tokens < FIRST_BELOW):
                counts.append(1)
            else:
                counts.append(self._rounded(kind, tokens))
        self.chunks, self._mean = chunks, mean
        self.kinds.add(kind)
        return counts

    def _stay_tokens(self, sizes: Sequence[int]) -> bool:
        """Note further chunks and return True if, surely, each of them is one token: no loop in Python."""
        size, below = sum(sizes), self._below
        mean = self._mean + size * self._rates[ASCII]
        # Below the bound of the first of them with all of them: so each mean is.
        if size >= ASCII_ALONE or mean >= below * (self.chunks + 1):
            return False
        self._mean = mean
        self.chunks += len(sizes)
        self.size += size
        return True

    def of(self, kind: int, tokens: int) -> int:
        """Return the tokens of a mark of a kind: those that the server counted, or of a text of a size below 0."""
        return tokens if tokens >= 0 else self.counts(kind, [-tokens])[0]

    def basis(self, stated: str) -> str:
        """Return the basis of the stream's counts, if that of the server's own is `stated`."""
        return stated if self.one_each or stated != "chunk" else "estimated"

    def learn(self, recorded: int, tokens: int) -> None:
        """Teach the model the tokens of the whole stream; `recorded`: how many were counted while it ran."""
        if self.learned:
            self.model.check.add(recorded, tokens)
        if len(self.kinds) == 1:
            self.model.learn(self.size, self.chunks, tokens)

    def _tokens(self, size: int) -> float:
        return sum(count * rate for count, rate in zip(by_class(size), self._rates, strict=True))

    def _rounded(self, kind: int, tokens: float) -> int:
        self.one_each = False
        tokens = min(tokens, MOST_A_CHUNK)
        estimated = self._estimated[kind] = self._estimated.get(kind, 0.0) + tokens
        reported = self._reported.get(kind, 0)
        self._reported[kind] = max(reported, ceil(estimated - _ROUNDING))
        return self._reported[kind] - reported


def _unknown(_model: str | None) -> ModelChunks:
    return ModelChunks()


class Estimates:
    """The estimates for the choices of one request; only those with text that the server did not count have one.

    `model_chunks` returns what is known of the chunks of the model that responds, by its name if the reply stated it.
    """

    __slots__ = ("_by_choice", "_model_chunks")

    def __init__(self, model_chunks: Callable[[str | None], ModelChunks] = _unknown) -> None:
        self._model_chunks = model_chunks
        self._by_choice: dict[int, TokenEstimate] = {}

    def of(self, choice: int, model: str | None) -> TokenEstimate:
        """Return the estimate for a choice, begun if there is none; `model`: the name that the reply stated."""
        found = self._by_choice.get(choice)
        if found is None:
            found = self._by_choice[choice] = TokenEstimate(self._model_chunks(model))
        return found

    def known(self, choice: int) -> TokenEstimate | None:
        """Return the estimate for a choice, None if there is none."""
        return self._by_choice.get(choice)

    def basis(self, choice: int, stated: str) -> str:
        """Return the basis of a choice's counts, if that of the server's own is `stated`."""
        found = self._by_choice.get(choice)
        return stated if found is None else found.basis(stated)

    def learned(self, choice: int) -> bool:
        """Return whether a choice's estimate uses what was learned of the model."""
        found = self._by_choice.get(choice)
        return found is not None and found.learned
