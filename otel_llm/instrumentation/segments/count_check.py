"""Compare the tokens that were recorded of a model's replies with those that the replies state."""

from __future__ import annotations

from typing import Final

OFF_BY: Final = 0.25
"""The relative difference that is worth a note."""
LEAST_REPLIES: Final = 5
REMEDY: Final = (
    "ask the server for its counts: stream_options.continuous_usage_stats (vLLM, SGLang) or return_token_ids (vLLM); "
    "see docs/counting.md"
)


class CountCheck:
    """The sums over the replies of one model, of those alone whose estimate used what was learned of it."""

    __slots__ = ("_recorded", "_replies", "_stated")

    def __init__(self) -> None:
        self._replies = self._recorded = self._stated = 0

    def add(self, recorded: int, stated: int) -> None:
        """Add the recorded and the stated number of tokens of a reply."""
        self._replies += 1
        self._recorded += recorded
        self._stated += stated

    @property
    def times(self) -> float | None:
        """Return how many times the recorded tokens the stated ones are; None if they agree, or too few are known."""
        if self._replies < LEAST_REPLIES or abs(self._recorded - self._stated) <= OFF_BY * self._stated:
            return None
        return self._stated / self._recorded


def difference(model: str, at: str, times: float) -> str:
    """Return the sentence for people."""
    named = f"{model or 'a model'} at {at}" if at else model or "a model"
    return f"{named}: replies state {times:.2g} times the tokens that are recorded while they stream"
