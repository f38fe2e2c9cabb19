"""The facts of one request of a load, as far as they are known."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from otel_llm import semconv

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_llm.bench.client.messages import Ended
    from otel_llm.instrumentation.segments.choices import Counted


@dataclass(slots=True, eq=False)
class ObservedRequest:
    """One sent request; the run that observes it is the single writer. All instants are monotonic ns.

    `intended_ns`: when it should have been sent (open loop), or was (closed loop): the commit. `sent_ns`: the start of
    the connect, or of the write on an open connection. `input_tokens`, `output_tokens`: as planned.

    `times_ns`, `kinds`: one entry for each token so far, in order of arrival (codes of `slo.classes.KINDS`); a chunk of
    k tokens has k equal times. A chunk that the server does not count is one token. Tokens beyond MAX_STREAM_TOKENS are
    left out.

    `end_ns`, `outcome` (of `slo.classes.OUTCOMES`): None while it is in flight. `error`: the kind of a failure
    (`http_429`, `refused` ...), None for a reply that completed. `token_basis`: exact, estimated or chunk.
    `prompt_tokens`, `stated_tokens`, `stated_reasoning`: as the server counted the prompt, the reply, and its
    reasoning; None if it did not.
    """

    number: int
    intended_ns: int
    sent_ns: int
    input_tokens: int
    output_tokens: int
    times_ns: array[int] = field(default_factory=lambda: array("q"))
    kinds: bytearray = field(default_factory=bytearray)
    end_ns: int | None = None
    outcome: str | None = None
    error: str | None = None
    token_basis: str | None = None
    prompt_tokens: int | None = None
    stated_tokens: int | None = None
    stated_reasoning: int | None = None
    placed: bool = False
    """Whether it is among the run's `requests`."""

    @property
    def lag_ns(self) -> int:
        """Return the send lag: from the intended time to the start of the connect or the write."""
        return self.sent_ns - self.intended_ns

    def extend(self, items: Iterable[Counted]) -> None:
        """Append the tokens of chunks."""
        for item in items:
            if isinstance(item, int):
                if len(self.kinds) < semconv.MAX_STREAM_TOKENS:
                    self.times_ns.append(item)
                    self.kinds.append(0)
                continue
            at_ns, marks = item
            for _, kind, stated, _ in marks:
                count = min(stated, semconv.MAX_STREAM_TOKENS - len(self.kinds))
                self.times_ns.extend([at_ns] * count)
                self.kinds.extend([kind] * count)

    def end(self, event: Ended) -> None:
        """Note the end."""
        self.end_ns, self.outcome, self.error = event.end_ns, event.outcome, event.error
        self.token_basis, self.prompt_tokens = event.basis, event.prompt_tokens
        self.stated_tokens, self.stated_reasoning = event.output_tokens, event.reasoning_tokens
