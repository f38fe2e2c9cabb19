"""The owned requests of a relay: each gets a session; actions and changes of backends reach the sessions here."""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from otel_llm import semconv
from otel_llm.relay.answers import STOPPING
from otel_llm.relay.attempts.connector import Connector
from otel_llm.relay.attempts.hedging import hedge_completed
from otel_llm.relay.headers import to_backend
from otel_llm.relay.recording.trace_headers import TRACE_HEADERS
from otel_llm.relay.splice.reply import Reply
from otel_llm.relay.streams.lifecycle import State
from otel_llm.relay.streams.pauses import Pauses
from otel_llm.relay.streams.queue_turn import QueueTurn
from otel_llm.relay.streams.session import Session
from otel_llm.shared.clock import monotonic_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from aiohttp import web

    from otel_llm.formats.records import RequestKey
    from otel_llm.relay.backends.backend import Backend
    from otel_llm.relay.backends.pool import Pool
    from otel_llm.relay.bodies import Body
    from otel_llm.relay.deciding.command import Command
    from otel_llm.relay.deciding.own_actions import Complete
    from otel_llm.relay.queueing.request_queue import RequestQueue
    from otel_llm.relay.recording.recorder import Recorder
    from otel_llm.relay.splice.request import OwnedRequest


class Owned:
    """The handler of requests whose streams the relay owns.

    `without`: headers of clients that are not sent on; `queue`: where requests wait for a slot, None if none waits.
    """

    def __init__(
        self, pool: Pool, recorder: Recorder, without: tuple[str, ...], queue: RequestQueue | None = None
    ) -> None:
        self._pool = pool
        self._queue = queue
        self._recorder = recorder
        self._without = (*without, *TRACE_HEADERS, "accept-encoding", "content-length")
        self.sessions: dict[RequestKey, Session] = {}
        """The streams in flight."""
        self.pauses = Pauses(pool.settings.preempt, self.starving, pool.metrics.preempted)
        self.victims: Callable[[str, RequestKey | None], Iterable[RequestKey]] = _no_victims
        """Returns the streams that a `preempt` of an instance (for a stream, if given) may take, first choice first."""

    async def __call__(
        self, request: web.BaseRequest, path: str, owned: OwnedRequest, body: Body
    ) -> web.StreamResponse:
        """Serve a request; `body`: it as it came."""
        caller, packed = body.caller, body.received if body.packed else None
        lengths, size = self._pool.lengths, len(owned.body)
        prompt, known = owned.prompt_tokens, None
        if prompt is None:
            prompt = lengths.prompt(owned.model, size)
            if not owned.multimodal:  # the bytes of a picture say nothing about text
                known = partial(lengths.prompt_known, owned.model, size)
        recorded = self._recorder.begin(caller.raw_headers(request.raw_headers), owned, monotonic_ns(), known)
        if owned.prompt_tokens is None:
            recorded.state({semconv.RELAY_INPUT_TOKENS_ESTIMATED: prompt})
        headers = to_backend(caller.headers(request.headers), *self._without)
        headers.extend(recorded.headers_for_backend())
        turn = None
        if self._queue is not None:
            output = lengths.output(recorded.slo.name, owned.model, owned.max_tokens)
            turn = QueueTurn(self._queue, recorded, prompt, output, caller.name)
        connector = Connector(
            self._pool, owned, path, headers, prompt, recorded, turn, caller.name, packed, body.trailers
        )
        session = self.sessions[recorded.key] = Session(request, recorded, Reply(owned), connector, self.pauses, turn)
        policy, completed = self._pool.settings.direct_placement, hedge_completed(connector.hedging)
        connector.hedge = partial(session.migrate, policy, {"reason": "hedge"}, completed, hedge=True)
        try:
            return await session.serve()
        finally:
            connector.hedging.end()
            del self.sessions[recorded.key]
            if turn is not None:
                turn.close()
            if session.whole and owned.choices == 1:
                lengths.output_known(recorded.slo.name, owned.model, recorded.output_tokens)
            self._pool.metrics.request(session.served, session.code)

    # Actions; see `own_actions.Actor`.

    def migrate(self, command: Command, complete: Complete) -> None:
        """Move a stream to another backend."""
        session = self._session(command)
        if session is None:
            complete("failed", "the stream is over", {})
            return
        session.migrate(str(command.arguments["to"]), {"rule": command.rule}, complete)

    def preempt(self, command: Command, complete: Complete) -> None:
        """Pause the first candidate that can be paused, else the first victim of the instance.

        It skips a candidate that has left the instance meanwhile: pausing it would make no room there.
        """
        if self.pauses.full:
            complete("budget", self.pauses.refusal, {})
            return
        for key in chain(command.candidates, self._victims_of(command)):
            session = self.sessions.get(key)
            if session is None or command.instance not in ("", session.instance):
                continue
            if session.pause_reason is None:
                session.pause(command.rule, complete)
                return
        complete("failed", "no stream can be paused", {})

    def _victims_of(self, command: Command) -> Iterator[RequestKey]:
        """Yield the relay's own choice, made only when it is needed."""
        yield from self.victims(command.instance, command.request)

    def may_pause(self, key: RequestKey) -> bool:
        """Tell whether a request's stream could be paused now."""
        session = self.sessions.get(key)
        return session is not None and session.pause_reason is None

    def abort(self, command: Command, complete: Complete) -> None:
        """End a stream with an error event."""
        session = self._session(command)
        message = f"the stream was aborted by the rule {command.rule}"
        if session is None or not session.cut("aborted", message, "aborted"):
            complete("failed", "the stream is over", {})
            return
        complete("done", "", {})

    def drain(self, command: Command, complete: Complete) -> None:
        """Stop sending new streams to a backend."""
        if not self._pool.backends.drain(command.instance):
            complete("failed", f"no backend is called {command.instance}", {})
            return
        self.drained(command.instance)
        complete("done", "", {})

    def _session(self, command: Command) -> Session | None:
        return None if command.request is None else self.sessions.get(command.request)

    # Events of backends and of the relay.

    def drained(self, instance: str) -> None:
        """Move streams off a drained backend, if possible and set so, for as long as it is drained."""
        if not self._pool.settings.drain.migrate:
            return
        backend = self._pool.backends.get(instance)
        for session in list(self.sessions.values()):
            if session.instance == instance:
                session.leave("drain", partial(_drained_of, session, backend))

    def starving(self) -> Mapping[str, int]:
        """Count the streams whose reader has read all and waits, by backend; those without any are left out."""
        found: Counter[str] = Counter()
        for session in self.sessions.values():
            if (count := session.recorded.starving()) > 0:
                found[session.instance] += count
        return found

    def refresh(self) -> None:
        """Update which streams can be resumed elsewhere: a backend was added, lost or changed."""
        for session in self.sessions.values():
            session.refresh()

    def cut_all(self) -> None:
        """End every remaining stream: the relay stops."""
        for session in list(self.sessions.values()):
            session.cut("upstream_error", "the relay stops", STOPPING)

    def row(self, key: RequestKey) -> dict[str, Any]:
        """Return further fields of a request beside its facts; none of one that has ended."""
        session = self.sessions.get(key)
        if session is None:
            return {}
        reason = session.exact_reason
        return {
            "exact_resume": reason is None,
            "exact_resume_reason": reason,
            "migrations": session.recorded.migrations,
            "state": session.state.value,
            "paused": session.paused,
            "queued": session.state is State.QUEUED,
        }


def _drained_of(session: Session, backend: Backend) -> bool:
    """Tell whether a stream is on a backend that is drained."""
    return backend.draining and session.instance == backend.name


def _no_victims(_instance: str, _stream: RequestKey | None) -> Iterable[RequestKey]:
    """Return no request."""
    return ()
