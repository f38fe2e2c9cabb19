"""Choose and open a backend for an owned request: the first, the next after a failure, the destination of a move.

One `Opening` goes with one request. It knows which backends had the request already, and their answers.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import aiohttp

from otel_llm.relay.answers import NO_BACKEND
from otel_llm.relay.backends.upstream import REFUSED, UpstreamError, read_some
from otel_llm.relay.queueing.request_queue import NotQueuedError
from otel_llm.relay.seam import resume
from otel_llm.relay.seam.dialect import dialect_of
from otel_llm.relay.seam.eligibility import is_greedy, static_reason
from otel_llm.relay.seam.leg import DIFFERS, Leg
from otel_llm.relay.streams.run import Run
from otel_llm.scheduling.placement import POLICIES, Demand

if TYPE_CHECKING:
    from collections.abc import Sequence

    from multidict import CIMultiDict

    from otel_llm.relay.backends.backends import Backend
    from otel_llm.relay.backends.pool import Pool
    from otel_llm.relay.recording.recorded import Recorded
    from otel_llm.relay.seam.piece import Piece
    from otel_llm.relay.seam.reply import Reply
    from otel_llm.relay.seam.request import OwnedRequest
    from otel_llm.relay.settings import Preempt
    from otel_llm.relay.streams.queue_turn import QueueTurn
    from otel_llm.scheduling.placement import Candidate

TRY_ELSEWHERE: Final = frozenset({429, 500, 502, 503, 504})
"""Statuses after which another backend is tried."""
BUSY: Final = "429"
MOST_BROKEN: Final = 2
"""After breaking so many backends before its first token a request is sent to no other: it may be the cause."""
NOTHING_LEFT: Final = "nothing is left to generate"
DRAWN_AGAIN: Final = "ids that its client has would be drawn again"
OF_THE_STREAM: Final = frozenset({NOTHING_LEFT, resume.UNFINISHED, DIFFERS})
"""Reasons for not continuing elsewhere that are no fault of the backend."""
CHAT, COMPLETIONS = "/chat/completions", "/completions"
DETOKENIZED_BYTES: Final = 2**20
OK: Final = 200


class Opening:
    """The backends' streams for one request.

    `headers` are those to send; `prompt` are the tokens of the request as far as they are known. `recorded` gets the
    backend that is asked the unchanged request, not one that is to continue it: until that has won, the source serves.
    The first backend is that of `turn`, where there is a queue.
    """

    def __init__(
        self,
        pool: Pool,
        owned: OwnedRequest,
        path: str,
        headers: CIMultiDict[str],
        prompt: int,
        recorded: Recorded,
        turn: QueueTurn | None,
    ) -> None:
        self.last_reason = NO_BACKEND
        """Why the last tried backend did not serve."""
        self._pool = pool
        self._owned = owned
        self._path = path
        self._headers = headers
        self._prompt = prompt
        self._recorded = recorded
        self._turn = turn
        self._tried: set[str] = set()
        self._broken: set[str] = set()
        self._answer: Run | None = None
        self._reasons: dict[str, str | None] = {}

    @property
    def silent_s(self) -> float:
        """How long a backend may be silent before its first event (s)."""
        return self._pool.settings.failover.first_byte_s

    @property
    def preempt(self) -> Preempt:
        """Return the settings of `preempt`."""
        return self._pool.settings.preempt

    @property
    def resumes(self) -> bool:
        """Whether a reply that broke off after its first token is continued."""
        return self._pool.settings.failover.resume

    # Candidates.

    def exact_reason(self, serving: Backend, reply: Reply) -> str | None:
        """Return why the stream cannot be continued exactly elsewhere; None where it can."""
        reason = self._static_reason(serving.kind) or reply.reason
        if reason is None and not self._peers(serving):
            return "no other healthy backend serves the model at the same length"
        return reason

    def pause_reason(self, serving: Backend, reply: Reply, carried: int | None = None) -> str | None:
        """Return why the stream, once paused, could not be continued exactly; None where it can.

        `carried`: the number of output ids whose text the reader has, None where that is not known yet.
        """
        if not reply.begun:
            return "it has no token yet"
        reason = self._static_reason(serving.kind) or reply.reason
        if reason is not None:
            return reason
        if resume.left(reply, reply.counted(0), self._length(serving)) is None:
            return NOTHING_LEFT
        if carried is None:
            carried = reply.carried
        sees_ids = self._owned.asked_ids and not is_greedy(self._owned.values)
        if sees_ids and carried is not None and carried < reply.counted(0):
            return DRAWN_AGAIN
        return None

    def rank(self, policy: str, serving: Backend, reply: Reply, *, back: bool = False) -> Sequence[Candidate]:
        """Return the possible destinations, best first: before its first token any, then exact peers.

        `back`: also the backend that served it; if it is the only one, even drained: it keeps its streams.
        """
        backends = self._pool.backends
        open_to = self._peers(serving) if reply.begun else backends.open_to(exclude={serving.name})
        if back and (backends.is_open(serving) or (not open_to and backends.is_well(serving))):
            open_to.append(serving)
        return backends.rank(policy, open_to, self._demand(policy, reply))

    def _demand(self, policy: str, reply: Reply) -> Demand:
        """Return the load to place: the prompt, and the output so far, which is prefilled with it."""
        prompt = len(reply.prompt_ids) if reply.prompt_ids else self._prompt
        tokens = prompt + (reply.counted(0) if reply.begun else 0)
        promised_ns = self._recorded.slo.token_time_ns if POLICIES[policy].predicts else None
        return Demand(tokens, None if promised_ns is None else promised_ns / 1e9)

    def _static_reason(self, kind: str) -> str | None:
        if kind not in self._reasons:
            self._reasons[kind] = static_reason(self._owned, kind)
        return self._reasons[kind]

    def _peers(self, serving: Backend) -> list[Backend]:
        """Return the other backends of the group that serve the same model at the same length."""
        model = self._owned.model or ""
        length = serving.models.get(model)
        return [
            other
            for other in self._pool.backends.open_to(group=serving.group, exclude={serving.name})
            if other.kind == serving.kind and length is not None and other.models.get(model) == length
        ]

    def _length(self, backend: Backend) -> int:
        """Return the longest prompt with reply of a backend (tokens), 0 where it states none."""
        return backend.models.get(self._owned.model or "") or 0

    # Opening.

    async def first(self, reply: Reply, *, headers_sent: bool) -> Run | None:
        """Send the unchanged request to the next backend by placement, and to others where that fails.

        None where no stream can be had; `take_answer` then has the last answer. `headers_sent`: the client has headers
        already, so that no other answer can be passed on.
        """
        while len(self._tried) <= self._pool.settings.failover.connect_retries and len(self._broken) < MOST_BROKEN:
            backend = await self._next(reply)
            if backend is None:
                break
            self._tried.add(backend.name)
            self._recorded.serving(backend.name)
            try:
                run = await self._open(backend, self._path, self._body_for(backend), reply)
            except UpstreamError as problem:
                self.broke(backend, problem.reason)
                continue
            if run.streams:
                self.drop_answer()
                return run
            status = run.response.status
            elsewhere = status in TRY_ELSEWHERE or headers_sent
            if elsewhere:
                self._note(backend, str(status))
            else:
                self.worked(backend)
            self._keep(run)
            if not elsewhere:
                break
        return None

    async def _next(self, reply: Reply) -> Backend | None:
        """Return the next backend by placement, the first by the queue; None where there is none."""
        policy = self._pool.settings.direct_placement
        demand = self._demand(policy, reply)
        if self._turn is None or self._tried:
            return self._pool.backends.choose(policy, self._tried, demand)
        try:
            return await self._turn.place(demand)
        except NotQueuedError as refused:
            self.last_reason = refused.reason
            return None

    async def resumed(self, reply: Reply, serving: Backend, *, back: bool = False) -> Run | None:
        """Continue a reply on another backend, the next where that fails; None where none can.

        `back`: also on the backend that served it. `last_reason` is then a passing one, if there is one.
        """
        passing, self.last_reason = None, NO_BACKEND
        for candidate in self.rank(self._pool.settings.direct_placement, serving, reply, back=back):
            try:
                return await self.destination(candidate.name, reply)
            except UpstreamError as problem:
                self._note(self._pool.backends.get(candidate.name), problem.reason)
                if not is_of_stream(problem.reason):
                    passing = problem.reason
        if passing is not None:
            self.last_reason = passing
        return None

    async def destination(self, name: str, reply: Reply) -> Run:
        """Open a backend that continues where the reply stands, and read it until it has something for the reader.

        Before the first token the request is sent unchanged. Raises UpstreamError.
        """
        backend = self._pool.backends.get(name)
        if reply.begun:
            carried = await self.carried(backend, reply)
            left = resume.left(reply, carried, self._length(backend))
            if left is None:
                raise UpstreamError(NOTHING_LEFT)
            body = resume.resume_body(reply, carried, left)
            run = await self._open(backend, self._path_to(COMPLETIONS), body, reply, carried)
        else:
            run = await self._open(backend, self._path, self._body_for(backend), reply)
        try:
            async with asyncio.timeout(self.silent_s):
                await self._read_ahead(run)
        except TimeoutError:
            run.close()
            raise UpstreamError("silent") from None
        except BaseException:
            run.close()
            raise
        return run

    async def _read_ahead(self, run: Run) -> None:
        if not run.streams:
            raise UpstreamError(str(run.response.status))
        while True:
            pieces = await run.read()
            for piece in pieces:
                if piece.error or piece.aborted or piece.done_without_finish:
                    raise UpstreamError(break_of(piece))
                if piece.trouble == DIFFERS:
                    raise UpstreamError(DIFFERS)
            run.held += [(run.read_ns, piece) for piece in pieces]
            if any(piece.text or piece.finish is not None for piece in pieces):
                return
            if run.over:
                raise UpstreamError("unfinished")

    async def _open(self, backend: Backend, path: str, body: bytes, reply: Reply, carried: int | None = None) -> Run:
        tokens = self._prompt + (carried or 0)
        placement = None if self._turn is None else self._turn.take_placement()
        self._pool.backends.begin(backend, tokens, tokens)
        try:
            async with asyncio.timeout(self.silent_s):
                response = await self._pool.upstream.open(backend, "POST", path, self._headers, body)
        except BaseException as problem:
            if placement is not None:
                placement.end(whole=False)
            self._pool.backends.end(backend, tokens, tokens)
            if isinstance(problem, TimeoutError):
                raise UpstreamError("silent") from None
            raise
        leg = Leg(reply, backend.kind, carried)
        one_prompt = self._owned.choices == 1
        return Run(backend, response, leg, self._pool.backends, tokens, one_prompt=one_prompt, placement=placement)

    async def carried(self, backend: Backend, reply: Reply) -> int:
        """Return the number of output ids whose text the reader has; the backend is asked where it does not follow.

        Raises UpstreamError where it cannot be found out.
        """
        carry = resume.Carry(reply)
        while carry.asks is not None:
            carry.answer(await self._detokenized(backend, resume.detokenize_body(reply, carry.asks)))
        if carry.count is None:
            raise UpstreamError(carry.reason or resume.UNFINISHED)
        return carry.count

    async def _detokenized(self, backend: Backend, body: bytes) -> str | None:
        """Return a backend's text for ids, None where it has none.

        Raises UpstreamError where it does not answer, which says nothing about the ids.
        """
        path = self._path_to(COMPLETIONS).partition("?")[0].removesuffix("/v1" + COMPLETIONS)
        try:
            async with asyncio.timeout(self._pool.settings.failover.detokenize_s):
                response = await self._pool.upstream.open(
                    backend, "POST", path + resume.DETOKENIZE_PATH, self._headers, body
                )
                text = b""
                try:
                    while len(text) < DETOKENIZED_BYTES and (data := await read_some(response)):
                        text += data
                finally:
                    response.close()
        except TimeoutError:
            raise UpstreamError("silent") from None
        except (aiohttp.ClientError, OSError) as problem:
            raise UpstreamError("broken") from problem
        if response.status in TRY_ELSEWHERE:
            raise UpstreamError(str(response.status))
        return resume.detokenized(text) if response.status == OK else None

    def _path_to(self, end: str) -> str:
        path, mark, query = self._path.partition("?")
        return path.removesuffix(CHAT).removesuffix(COMPLETIONS) + end + mark + query

    def _body_for(self, backend: Backend) -> bytes:
        brings = self._owned.endpoint in dialect_of(backend.kind).ids_of
        return self._owned.body_with_ids() if brings else self._owned.body

    # Results.

    def worked(self, backend: Backend) -> None:
        """Note that a backend served the request to its end: its headers alone prove nothing."""
        self._pool.backends.worked(backend)

    def broke(self, backend: Backend, reason: str) -> None:
        """Note that a backend did not serve the request, or not to its end."""
        if reason != REFUSED:
            self._broken.add(backend.name)
        self._note(backend, reason)

    def _note(self, backend: Backend, reason: str) -> None:
        self.last_reason = reason
        self._pool.metrics.failed_over(reason)
        # A full backend is alive; if 429 ejected it, a full fleet would serve no request.
        if reason != BUSY and not is_of_stream(reason):
            self._pool.backends.failed(backend)

    def _keep(self, run: Run) -> None:
        """Keep an answer that is no stream: the last one is passed on if no backend serves."""
        self.drop_answer()
        self._answer = run

    def added(self, seconds: float) -> None:
        """Note how long a passed-on chunk was in the relay."""
        self._pool.metrics.added(seconds)

    def moved(self, source: str, to: str, outcome: str, gap_s: float | None) -> None:
        """Note the outcome of a move."""
        self._pool.metrics.moved(source, to, outcome, gap_s)

    def take_answer(self) -> Run | None:
        """Return the last answer that was no stream, for the caller to pass on; None where there was none."""
        answer, self._answer = self._answer, None
        return answer

    def drop_answer(self) -> None:
        """Close the last answer, if it was not taken."""
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.close()


def is_of_stream(reason: str) -> bool:
    """Tell whether a stream did not go on for a reason that is no fault of the backend, such as an answer 400."""
    return reason in OF_THE_STREAM or (reason.isdecimal() and int(reason) not in TRY_ELSEWHERE)


def break_of(piece: Piece) -> str:
    """Return the reason of the break that a piece is."""
    return "error_event" if piece.error else "abort" if piece.aborted else "unfinished"
