"""The backends that may serve a request: which of them, in which order, or why none.

One `Destinations` goes with one request; it asks no backend.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_llm.relay.attempts.breaks import NOTHING_LEFT
from otel_llm.relay.backends.backend import Needs
from otel_llm.relay.splice import resume
from otel_llm.relay.splice.eligibility import is_greedy, static_reason
from otel_llm.scheduling.placement import POLICIES, Demand

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_llm.relay.backends.backend import Backend
    from otel_llm.relay.backends.pool import Pool
    from otel_llm.relay.recording.recorded import Recorded
    from otel_llm.relay.splice.eligibility import Way
    from otel_llm.relay.splice.reply import Reply
    from otel_llm.relay.splice.request import OwnedRequest
    from otel_llm.scheduling.placement import Candidate

NO_PEER: Final = "no other healthy backend serves the model at the same length"
START_S: Final = 1.0
"""The start limit of a destination that has sent no first token yet."""
LEAST_START_S: Final = 0.2
START_FACTOR: Final = 3.0
"""The start limit of a destination, by the usual time to its first token."""
DRAWN_AGAIN: Final = "ids that its client has would be drawn again"


class Destinations:
    """The backends for one request; `prompt` are its tokens as far as they are known."""

    def __init__(self, pool: Pool, owned: OwnedRequest, prompt: int, recorded: Recorded) -> None:
        self._pool = pool
        self._owned = owned
        self._prompt = prompt
        self._recorded = recorded
        self._needs = Needs(owned.model or "", prompt + (owned.max_tokens or 1))
        self._reasons: dict[tuple[str, Way], str | None] = {}

    def exact_reason(self, serving: Backend, reply: Reply) -> str | None:
        """Return why the stream cannot be continued exactly elsewhere; None if it can."""
        return self._reason(serving, reply, self._peers(serving))

    def way(self, backend: Backend, reply: Reply) -> Way | None:
        """Return the way in which a backend can continue a reply; None if it cannot."""
        if reply.reason is not None:
            return None
        if backend.continues_chats and self._static_reason(backend.kind, "chat") is None:
            return "chat"
        plain = reply.channel_reason is None and self._static_reason(backend.kind, "completions") is None
        return "completions" if plain else None

    def _reason(self, serving: Backend, reply: Reply, backends: Sequence[Backend]) -> str | None:
        """Return why none of some backends can continue a reply; None if one can."""
        if any(self.way(one, reply) is not None for one in backends):
            return None
        plain = self._static_reason(serving.kind, "completions") or reply.channel_reason
        native = self._static_reason(serving.kind, "chat")
        if any(one.continues_chats for one in backends) and plain is not None:
            return native or reply.reason
        return plain or reply.reason or NO_PEER

    def pause_reason(self, serving: Backend, reply: Reply, carried: int | None = None) -> str | None:
        """Return why the stream, once paused, could not be continued exactly; None if it can.

        `carried`: the number of output ids whose text the reader has, None if that is not known yet.
        """
        if not reply.begun:
            return "it has no token yet"
        reason = self._reason(serving, reply, [serving, *self._peers(serving)])
        if reason is not None:
            return reason
        if resume.left(reply, reply.counted(0), self.length(serving)) is None:
            return NOTHING_LEFT
        if carried is None:
            carried = reply.carried
        sees_ids = self._owned.asked_ids and not is_greedy(self._owned.values)
        if sees_ids and carried is not None and carried < reply.counted(0):
            return DRAWN_AGAIN
        return None

    def rank(self, policy: str, serving: Backend, reply: Reply, *, back: bool = False) -> Sequence[Candidate]:
        """Return the possible destinations, best first: before its first token any, then exact peers.

        `back`: also the backend that served it; if it is the only one, whatever its state is: it keeps its streams.
        """
        backends = self._pool.backends
        return backends.rank(policy, self.possible(serving, reply, back=back), self.demand(policy, reply))

    def possible(self, serving: Backend, reply: Reply, *, back: bool) -> list[Backend]:
        """Return the possible destinations, see `rank`."""
        backends = self._pool.backends
        found = self._peers(serving) if reply.begun else self._others(serving)
        if back and (serving in backends.open_to(needs=self._needs) or not found):
            found.append(serving)
        return [one for one in found if not reply.begun or self.way(one, reply) is not None]

    def _others(self, serving: Backend) -> list[Backend]:
        """Return the other backends that the whole request can be sent to."""
        return self._pool.backends.open_to(exclude={serving.name}, needs=self._needs)

    def demand(self, policy: str, reply: Reply) -> Demand:
        """Return the load to place: the prompt, and the output so far, which is prefilled with it."""
        promised_ns = self._recorded.slo.token_time_ns if POLICIES[policy].predicts else None
        return Demand(self._tokens_so_far(reply), None if promised_ns is None else promised_ns / 1e9)

    def _tokens_so_far(self, reply: Reply) -> int:
        """Return the tokens that a backend prefills which goes on: the prompt, and the output so far."""
        prompt = len(reply.prompt_ids) if reply.prompt_ids else self._prompt
        return prompt + (reply.counted(0) if reply.begun else 0)

    # Predictions.

    def start_s(self, name: str, reply: Reply) -> float:
        """Return how long a destination may take to its first token before another is asked (s)."""
        if (start_s := self._pool.settings.move.start_s) is not None:
            return start_s
        usual_s = self.hand_over_s(name, reply)
        return START_S if usual_s is None else max(LEAST_START_S, START_FACTOR * usual_s)

    def hand_over_s(self, name: str, reply: Reply) -> float | None:
        """Return the time that a destination takes to its first token (s), None if it is not known."""
        return self._pool.backends.get(name).first_tokens.median(self._tokens_so_far(reply))

    def pace(self, name: str, reply: Reply) -> float | None:
        """Return the tokens a second that a destination would give the stream; None if it is not known."""
        return self._pool.backends.pace(self._pool.backends.get(name), self._tokens_so_far(reply))

    def _static_reason(self, kind: str, way: Way) -> str | None:
        if (kind, way) not in self._reasons:
            self._reasons[kind, way] = static_reason(self._owned, kind, way)
        return self._reasons[kind, way]

    def _peers(self, serving: Backend) -> list[Backend]:
        """Return the other backends of the group that serve the same model at the same length."""
        model = self._owned.model or ""
        length = serving.models.get(model)
        return [
            other
            for other in self._pool.backends.open_to(serving.group, {serving.name}, Needs(model))
            if other.kind == serving.kind and length is not None and other.models.get(model) == length
        ]

    def is_longer(self, backend: Backend) -> bool:
        """Tell whether a request that a backend refused may be too long for it, and another one has more room.

        The prompt may have more tokens than was expected. From now on only the others can hold it.
        """
        length, model = self.length(backend), self._owned.model or ""
        if self._owned.prompt_tokens is not None or not length:
            return False
        self._needs = Needs(model, max(self._needs.tokens, length + 1))
        return any((one.models.get(model) or 0) > length for one in self._pool.backends)

    def length(self, backend: Backend) -> int:
        """Return the longest prompt with reply of a backend (tokens), 0 if it states none."""
        return backend.models.get(self._owned.model or "") or 0
