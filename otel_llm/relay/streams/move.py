"""One move of a stream from a backend to another."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

    from otel_llm.relay.deciding.own_actions import Settle


@dataclass(slots=True)
class Move:
    """A move of the stream from one backend to another, from its beginning to the first text after it.

    `why` names the rule or the reason, for the request span; `settle` is called once.
    """

    source: str
    why: Mapping[str, str]
    settle: Settle
    to: str = ""
    carried: int | None = None
    """Output tokens from which the destination continued; None until it has begun."""
    candidates: list[dict[str, Any]] = field(default_factory=list)
    task: asyncio.Task[None] | None = None
    over: bool = False

    def end(self, outcome: str, detail: str, gap_s: float | None = None) -> None:
        """Settle the move, once."""
        if self.over:
            return
        self.over = True
        facts: dict[str, Any] = {"from": self.source}
        if self.to:
            facts |= {"to": self.to, "tokens_carried": self.carried, "gap_seconds": gap_s}
        if self.candidates:
            facts["candidates"] = self.candidates
        self.settle(outcome, detail, facts)
