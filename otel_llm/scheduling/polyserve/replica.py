"""The state of replicas and requests that the policy reads, and the profile that it predicts with.

A simulated instance has this state itself. The relay derives it from the streams that it has in flight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable


class Request(Protocol):
    """A request to place. The policy changes nothing of it but `late`.

    `number`: unique, in order of arrival. `tier`: the position of its promise in the list that the policy was made
    with. `context`: the tokens to prefill, its prompt (and its output so far, if it begins again); the relay has an
    estimate. `due_ns`: its first token is due then. `ready`: its context is on the decode replica already, which is
    so only in a disaggregated fleet. `late`: no idle replica could keep its promise any more; an engine starts it
    after all others.
    """

    number: int
    tier: int
    context: int
    due_ns: int
    ready: bool
    late: bool


class Prefill(NamedTuple):
    """A placed request without its first token: `remaining` tokens are in no iteration yet, `prior` are prefilled."""

    request: Request
    remaining: int
    prior: int


class Replica(Protocol):
    """A replica, as of now. Every answer must be cheap: a placement asks all replicas of a tier.

    `number`: its position in the fleet, unique. `end_ns`: the end of the current iteration, None while it is idle; the
    relay predicts it from the profile and the last token that it saw.
    """

    number: int
    end_ns: int | None

    @property
    def decodes(self) -> int:
        """Return the number of requests that decode, late ones included."""
        ...

    @property
    def decode_context(self) -> int:
        """Return the sum of their contexts: prompts and output so far, in tokens."""
        ...

    @property
    def requests(self) -> int:
        """Return the number of requests placed here that are not over."""
        ...

    @property
    def tokens(self) -> int:
        """Return the contexts of all of them, in tokens: the KV that they hold or will hold."""
        ...

    @property
    def iterations(self) -> int:
        """Return the iterations so far. Each gives every decode one token.

        The policy knows the tokens of a request so far by the iterations since its first token. The relay adds
        1 / decodes for each token that it sees.
        """
        ...

    def prefills(self) -> Iterable[Prefill]:
        """Return the requests without a first token, in the order in which the engine gives them chunks."""
        ...


RequestT = TypeVar("RequestT", bound=Request)
ReplicaT = TypeVar("ReplicaT", bound=Replica)
