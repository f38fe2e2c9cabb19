"""What a relay knows of a backend's engine: its prefills and decodes, and its iterations by the profile.

A model is made of the relay's own streams. An iteration begins at a token that was read, or when the profile says that
the one before is over; each takes prompts in the order of their placement, up to the profile's `max_batched_tokens`.
No I/O, no clock: instants are passed in (ns).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_llm.scheduling.polyserve.replica import Prefill

if TYPE_CHECKING:
    from otel_llm.relay.backends.backend import Backend
    from otel_llm.relay.backends.backends import Backends
    from otel_llm.scheduling.profiles.profile import Profile


class PlacedRequest:
    """A request as the policy sees it, see `polyserve.replica.Request`; `produced` are its tokens that were read."""

    __slots__ = ("context", "due_ns", "late", "number", "produced", "ready", "remaining", "tier")

    def __init__(self, number: int, tier: int, context: int, due_ns: int, *, late: bool) -> None:
        self.number = number
        self.tier = tier
        self.context = context
        self.due_ns = due_ns
        self.late = late
        self.ready = False
        self.produced = 0
        self.remaining = context
        """Tokens of the prompt that are in no iteration yet."""


class ReplicaModel:
    """The model of one backend, see `polyserve.replica.Replica`.

    Requests and tokens are those that `Backends` counts, however they were placed. A backend that takes no requests
    looks full: `is_open` is set by the caller.
    """

    def __init__(self, number: int, backend: Backend, backends: Backends, profile: Profile) -> None:
        self.number = number
        self.backend = backend
        self.is_open = True
        self.end_ns: int | None = None
        self.iterations = 0
        self._backends = backends
        self._profile = profile
        self._prefills: dict[int, PlacedRequest] = {}
        """Requests without a token, in the order of their placement."""
        self._begun_ns = 0
        self._taken: list[tuple[PlacedRequest, int]] = []
        """The prompts' tokens of the current iteration."""
        self._seen = 0
        """Tokens of decodes since the last whole iteration."""

    # For the policy.

    @property
    def requests(self) -> int:
        """Return the requests here; the profile's most if none is taken."""
        return self._backends.in_flight(self.backend) if self.is_open else self._profile.max_batch

    @property
    def tokens(self) -> int:
        """Return the tokens of their contexts; the whole KV if none is taken."""
        return self._backends.tokens_in_flight(self.backend) if self.is_open else self._profile.kv_tokens

    @property
    def decodes(self) -> int:
        """Return the requests that decode, by what was read; with those that were placed by others."""
        return max(0, self._backends.in_flight(self.backend) - len(self._prefills))

    @property
    def decode_context(self) -> int:
        """Return the tokens of their contexts."""
        waiting = sum(one.context for one in self._prefills.values())
        return max(0, self._backends.tokens_in_flight(self.backend) - waiting)

    def prefills(self) -> list[Prefill]:
        """Return the requests without a token, those first that the engine began first."""
        return [Prefill(one, one.remaining, one.context - one.remaining) for one in self._prefills.values()]

    # Events.

    def place(self, request: PlacedRequest, now_ns: int) -> None:
        """Add a request that is sent here, behind its place in `Backends`."""
        self._prefills[request.number] = request
        if self.end_ns is None:
            self._begin(now_ns)

    def read(self, request: PlacedRequest, tokens: int, now_ns: int) -> bool:
        """Note tokens of a request; return whether they are its first."""
        self.advance(now_ns)
        first = self._prefills.pop(request.number, None) is not None
        request.produced += tokens
        if not first:
            self._seen += tokens
            decodes = max(1, self.decodes)
            self.iterations += self._seen // decodes
            self._seen %= decodes
        # The tokens of an iteration are read one after another: those right behind its begin belong to the one before.
        length_ns = 0 if self.end_ns is None else self.end_ns - self._begun_ns
        if first or 2 * (now_ns - self._begun_ns) > length_ns:
            if 2 * (now_ns - self._begun_ns) <= length_ns:
                for one, take in self._taken:
                    one.remaining += take
            self._begin(now_ns)
        return first

    def end(self, request: PlacedRequest) -> None:
        """Remove a request that is over or was given up, before `Backends` counts it no longer."""
        self._prefills.pop(request.number, None)

    def advance(self, now_ns: int) -> None:
        """Let the iterations pass that are over by the profile."""
        if not self._backends.in_flight(self.backend):
            self.end_ns, self._taken = None, []
        while self.end_ns is not None and self.end_ns <= now_ns:
            if not any(one.remaining for one in self._prefills.values()):
                length_ns = max(1, self.end_ns - self._begun_ns)
                self._begun_ns += (now_ns - self._begun_ns) // length_ns * length_ns
                self._begin(self._begun_ns)
                return
            self._begin(self.end_ns)

    def _begin(self, now_ns: int) -> None:
        """Begin an iteration with the chunks that the engine gives: as many tokens as it may."""
        self._begun_ns, self._taken = now_ns, []
        decodes = self.decodes
        if not decodes and not self._prefills:
            self.end_ns = None
            return
        budget = max(1, self._profile.max_batched_tokens - decodes)
        chunk = weighted = 0
        for one in self._prefills.values():
            take = min(one.remaining, budget - chunk)
            if take:
                weighted += take * (one.context - one.remaining)
                one.remaining -= take
                chunk += take
                self._taken.append((one, take))
        prior = weighted // chunk if chunk else 0
        length_ns = self._profile.iteration_ns(decodes, self.decode_context, chunk, prior)
        self.end_ns = now_ns + length_ns + self._profile.step_overhead_ns
