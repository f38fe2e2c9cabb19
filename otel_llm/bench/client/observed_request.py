"""The facts of one request of a load, as far as they are known."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class ObservedRequest:
    """One sent request; the run that observes it is the single writer. All instants are monotonic ns.

    `intended_ns`: when it should have been sent (open loop), or was (closed loop): the commit. `sent_ns`: the start of
    the connect, or of the write on an open connection. `input_tokens`, `output_tokens`: as planned.

    `times_ns`, `kinds`: one entry for each token so far, in order of arrival (codes of `slo.classes.KINDS`); a chunk of
    k tokens has k equal times. Until the end a chunk that the server does not count is one token; a reply whose tokens
    are `estimated` gets its times anew at its end.

    `end_ns`, `outcome` (of `slo.classes.OUTCOMES`): None while it is in flight. `error`: the kind of a failure
    (`http_429`, `refused`, `closed_early` ...), None for a reply that completed. `token_basis`: exact, estimated, chunk.
    `prompt_tokens`: as the server counted them, None where it did not.
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

    @property
    def in_flight(self) -> bool:
        """Return whether it has not ended yet."""
        return self.end_ns is None

    @property
    def lag_ns(self) -> int:
        """Return the send lag: from the intended time to the start of the connect or the write."""
        return self.sent_ns - self.intended_ns
