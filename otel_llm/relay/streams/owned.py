"""The owned requests of a relay: each gets a session; actions and changes of backends find theirs here."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from otel_llm.relay.headers import to_backend
from otel_llm.relay.recording.recorded import TRACE_HEADERS
from otel_llm.relay.seam.reply import Reply
from otel_llm.relay.seam.request import OwnedRequest
from otel_llm.relay.streams.opening import Opening
from otel_llm.relay.streams.session import Session, unsettled

if TYPE_CHECKING:
    from aiohttp import web

    from otel_llm.relay.backends.pool import Pool
    from otel_llm.relay.deciding.own_actions import Settle
    from otel_llm.relay.recording.recorded import RequestKey
    from otel_llm.relay.recording.recorder import Recorder
    from otel_llm.rules.decisions import Decision


class Owned:
    """Serve requests whose streams the relay owns. `without`: headers of clients that are not sent on."""

    def __init__(self, pool: Pool, recorder: Recorder, without: tuple[str, ...]) -> None:
        self._pool = pool
        self._recorder = recorder
        self._without = (*without, *TRACE_HEADERS, "accept-encoding", "content-length")
        self._sessions: dict[RequestKey, Session] = {}

    async def __call__(self, request: web.BaseRequest, path: str, body: bytes) -> web.StreamResponse | None:
        """Serve a request whose path may be owned; None where it is not to be owned."""
        owned = OwnedRequest.parse(path, body)
        if owned is None:
            return None
        recorded = self._recorder.begin(request.raw_headers, owned, time.monotonic_ns())
        headers = to_backend(request.headers, *self._without)
        headers.extend(recorded.headers_for_backend())
        opening = Opening(self._pool, owned, path, headers, recorded.serving)
        session = self._sessions[recorded.key] = Session(request, recorded, Reply(owned), opening)
        try:
            return await session.serve()
        finally:
            del self._sessions[recorded.key]
            self._pool.metrics.request(session.served, session.code)

    # What rules decide; see decide.Actor.

    def migrate(self, key: RequestKey, decision: Decision, settle: Settle) -> None:
        """Move a stream to another backend."""
        session = self._sessions.get(key)
        if session is None:
            settle("failed", "the stream is over", {})
            return
        session.migrate(str(decision.arguments["to"]), {"rule": decision.rule}, settle)

    def abort(self, key: RequestKey, decision: Decision, settle: Settle) -> None:
        """End a stream: its client is told."""
        session = self._sessions.get(key)
        message = f"the stream was aborted by the rule {decision.rule}"
        if session is None or not session.cut("aborted", message, "aborted"):
            settle("failed", "the stream is over", {})
            return
        settle("done", "", {})

    def drain(self, instance: str, decision: Decision, settle: Settle) -> None:  # noqa: ARG002
        """Send a backend no new streams."""
        if not self._pool.backends.drain(instance):
            settle("failed", f"no backend is called {instance}", {})
            return
        self.drained(instance)
        settle("done", "", {})

    # What happens to backends and to the relay.

    def drained(self, instance: str) -> None:
        """Move what can be moved off a backend that is drained, where the settings say so."""
        if self._pool.settings.drain.migrate:
            for session in list(self._sessions.values()):
                if session.instance == instance:
                    session.migrate(self._pool.settings.placement, {"reason": "drain"}, unsettled)
        self.refresh()

    def refresh(self) -> None:
        """Look anew which streams can be resumed elsewhere: a backend has come, gone or changed."""
        for session in self._sessions.values():
            session.refresh()

    def cut_all(self) -> None:
        """End every stream that is left: the relay stops."""
        for session in list(self._sessions.values()):
            session.cut("upstream_error", "the relay stops", "shutting_down")

    def rows(self) -> dict[RequestKey, dict[str, Any]]:
        """Return what is told of each request beside its facts."""
        return {key: self._row(session) for key, session in self._sessions.items()}

    def _row(self, session: Session) -> dict[str, Any]:
        reason = session.exact_reason
        return {
            "exact_resume": reason is None,
            "exact_resume_reason": reason,
            "migrations": session.recorded.migrations,
        }
