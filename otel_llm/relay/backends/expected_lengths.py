"""The expected lengths of requests, in tokens: prompts by the bytes of their body, outputs by those that finished.

State without I/O. The lengths of one relay have one owner, this class; placement and the queue ask it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from otel_llm.scheduling.output_lengths import EXPECTED_OUTPUT, OutputLengths

BYTES_PER_TOKEN: Final = 4
"""The ratio of a model before any of its prompts is known: the usual one of English text."""
PRIOR_TOKENS: Final = 200
"""The first ratio counts as a prompt of so many tokens."""
KEPT: Final = 0.99
"""The weight that a prompt keeps with each further one: the last 100 or so make the ratio."""
MOST_MODELS: Final = 256
MOST_KINDS: Final = 1024
"""Names of models are the clients': beyond these numbers new ones share an entry."""


@dataclass(slots=True)
class _Seen:
    """The bytes and the tokens of the prompts of a model, the newest with the most weight."""

    size: float = float(PRIOR_TOKENS * BYTES_PER_TOKEN)
    tokens: float = float(PRIOR_TOKENS)

    def add(self, size: int, tokens: int) -> None:
        self.size = self.size * KEPT + size
        self.tokens = self.tokens * KEPT + tokens


class ExpectedLengths:
    """Predict the lengths of requests from those of their model and class; every call costs about a microsecond."""

    def __init__(self) -> None:
        self._prompts: dict[str, _Seen] = {}
        self._outputs = OutputLengths()
        self._kinds: set[str] = set()

    def prompt(self, model: str | None, size: int) -> int:
        """Return the expected tokens of a prompt whose body has `size` bytes, rounded down."""
        seen = self._prompts.get(model or "")
        return size // BYTES_PER_TOKEN if seen is None else int(size * seen.tokens / seen.size)

    def prompt_known(self, model: str | None, size: int, tokens: int) -> None:
        """Learn from a prompt whose tokens are known by their ids or by `usage`; an empty one teaches nothing."""
        name = model or ""
        if size < 1 or tokens < 1 or (name not in self._prompts and len(self._prompts) >= MOST_MODELS):
            return
        self._prompts.setdefault(name, _Seen()).add(size, tokens)

    def output(self, slo_class: str, model: str | None, most: int | None) -> int:
        """Return the expected tokens of a reply: the mean of those that finished, at least 1, at most `most`."""
        found = self._outputs.distribution(self._kind(slo_class, model))
        expected = EXPECTED_OUTPUT if found is None else round(found[0])
        return max(1, expected if most is None else min(expected, most))

    def output_known(self, slo_class: str, model: str | None, tokens: int) -> None:
        """Learn from a reply that finished; an empty one teaches nothing."""
        if tokens < 1:
            return
        kind = self._kind(slo_class, model)
        self._kinds.add(kind)
        self._outputs.observe(kind, tokens)

    def _kind(self, slo_class: str, model: str | None) -> str:
        """Return the class and the model as a kind of request; the class alone if there are too many kinds."""
        kind = f"{slo_class}\0{model or ''}"
        return kind if kind in self._kinds or len(self._kinds) < MOST_KINDS else slo_class
