"""Choose and open a backend for an owned request: the first, the next after a failure, the destination of a move.

One `Connector` goes with one request. It knows which backends had the request already, and their answers.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from otel_llm.relay.answers import NO_BACKEND
from otel_llm.relay.attempts.breaks import NOTHING_LEFT, break_of, is_break, is_of_stream
from otel_llm.relay.attempts.destinations import Destinations
from otel_llm.relay.attempts.hedging import HedgedAttempt, Hedging
from otel_llm.relay.attempts.race import Race
from otel_llm.relay.attempts.run import OK, Run
from otel_llm.relay.backends.blame import Blame
from otel_llm.relay.backends.upstream import REFUSED, TRY_ELSEWHERE, UpstreamError
from otel_llm.relay.headers import end_to_end
from otel_llm.relay.queueing.request_queue import NotQueuedError
from otel_llm.relay.splice import resume
from otel_llm.relay.splice.dialect import dialect_of
from otel_llm.relay.splice.upstream_response import DIFFERS, IGNORED, MAX_PROMPT, UpstreamResponse
from otel_llm.shared.clock import monotonic_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from multidict import CIMultiDict

    from otel_llm.relay.backends.backend import Backend
    from otel_llm.relay.backends.pool import Pool
    from otel_llm.relay.backends.upstream import Sendable
    from otel_llm.relay.recording.recorded import Recorded
    from otel_llm.relay.settings import Preempt
    from otel_llm.relay.splice.reply import Reply
    from otel_llm.relay.splice.request import OwnedRequest
    from otel_llm.relay.streams.queue_turn import QueueTurn


BUSY: Final = "429"
TOO_LONG: Final = 400
CHAT, COMPLETIONS = "/chat/completions", "/completions"


class Connector(Destinations):
    """The backends' streams for one request.

    `headers` are those to send; `prompt` are the tokens of the request as far as they are known. `recorded` gets the
    backend that is asked the unchanged request, not one that is to continue it: until that has won, the source serves.
    The first backend is that of `turn`, if there is a queue. `client`: the name of the client.
    `packed`: the body as the client compressed it, None if it did not; it is sent unless the request must be changed.
    `trailers`: those of the request.
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
        client: str,
        packed: bytes | None = None,
        trailers: Sequence[bytes] = (),
    ) -> None:
        super().__init__(pool, owned, prompt, recorded)
        self.last_reason = NO_BACKEND
        """Why the last tried backend did not serve."""
        self._path = path
        self._headers = headers
        self._sent = owned.body if packed is None else packed
        self._own_headers = headers if packed is None else end_to_end(headers, "content-encoding")
        self._trailers = trailers
        self._turn = turn
        self._blame = Blame(pool.backends, client)
        self._tried: set[str] = set()
        self._tries = 0
        self.hedging = Hedging(pool, self._hedge_to, lambda backend: self._note(backend, "silent"))
        self.hedge: Callable[[], None] = _nothing
        """Moves the stream, which has no token yet, to another backend; it calls `hedging.completed` at its end."""
        self._answer: Run | None = None

    @property
    def silent_s(self) -> float:
        """How long a backend may be silent before its first event (s)."""
        return self._pool.settings.failover.first_byte_s

    @property
    def preempt(self) -> Preempt:
        """Return the settings of `preempt`."""
        return self._pool.settings.preempt

    @property
    def idle_s(self) -> float:
        """How long a serving backend may be silent before its stream is moved (s); 0 for any time."""
        return self._pool.settings.failover.idle_s

    @property
    def policy(self) -> str:
        """Return the placement policy of what no rule decides."""
        return self._pool.settings.direct_placement

    @property
    def resumes(self) -> bool:
        """Whether a reply that broke off after its first token is continued."""
        return self._pool.settings.failover.resume

    # Opening.

    async def first(self, reply: Reply, *, headers_sent: bool) -> Run | None:
        """Send the unchanged request to the next backend by placement, and to others if that fails.

        None if no stream can be had; `take_answer` then has the last answer. `headers_sent`: the client has headers
        already, so that no other answer can be passed on.
        """
        while (backend := await self._next(reply)) is not None:
            self._tries += 1
            self._tried.add(backend.name)
            self._recorded.serving(backend.name)
            run = await self._first_of(backend, reply)
            if run is None:
                continue
            self._recorded.serving(run.backend.name)
            if run.streams:
                self.drop_answer()
                return run
            status = run.response.status
            elsewhere = status in TRY_ELSEWHERE or headers_sent or (status == TOO_LONG and self.is_longer(run.backend))
            if elsewhere:
                self._note(run.backend, str(status))
            else:
                self.worked(run.backend)
            self._keep(run)
            if not elsewhere:
                break
        return None

    async def _first_of(self, backend: Backend, reply: Reply) -> Run | None:
        """Send the unchanged request to a backend, and if it is late to another one; None if they fail."""
        race = HedgedAttempt()

        def hedge() -> None:
            policy, backends = self._pool.settings.direct_placement, self._pool.backends
            ranked = backends.rank(policy, self._hedge_to(backend), self.demand(policy, reply))
            names = [candidate.name for candidate in ranked]
            race.beside(self.hedge_race(names, reply).run(), lambda _: self.hedging.completed("failed"))

        self.hedging.begin(backend, self._prompt)
        self.hedging.sends(hedge)
        opened = self._open(backend, self._path, self._body_for(backend), reply, limit_s=None)
        run = await race.first(opened, lambda problem: self.broke(backend, problem.reason))
        if run is None or not run.streams:
            self.hedging.end()
        elif run.backend is not backend:
            self.hedging.completed("done")
        else:
            run.patient = True
            self.hedging.sends(self.hedge)
        return run

    def hedge_race(self, names: Sequence[str], reply: Reply) -> Race:
        """Return a walk through backends; one at a time gets the request beside the one that is late.

        Each counts as a try.
        """
        left = self._pool.settings.failover.connect_retries + 1 - self._tries
        return Race(self, reply, names[: max(0, left)], None, on_request=self._count_try)

    def _count_try(self) -> None:
        self._tries += 1

    def _others(self, serving: Backend) -> list[Backend]:
        return self._hedge_to(serving) or super()._others(serving)

    def _hedge_to(self, asked: Backend) -> list[Backend]:
        """Return the backends that can get the request beside one that is late."""
        if self._blame.last or self._tries > self._pool.settings.failover.connect_retries:
            return []
        return self._pool.backends.open_to(exclude={asked.name, *self._tried}, needs=self._needs)

    async def _next(self, reply: Reply) -> Backend | None:
        """Return the next backend by placement, the first by the queue; None if there is none."""
        policy, backends = self._pool.settings.direct_placement, self._pool.backends
        demand = self.demand(policy, reply)
        if self._turn is None or self._tries:
            if self._blame.over or self._tries > self._pool.settings.failover.connect_retries:
                return None
            if not self._blame.last:
                return backends.choose(policy, self._tried, demand, self._needs)
            found = backends.open_to(exclude=self._tried, needs=self._needs) or backends.open_to(needs=self._needs)
            return backends.pick(policy, backends.steadiest(found), demand) if found else None
        try:
            return await self._turn.place(demand, self._needs)
        except NotQueuedError as refused:
            self.last_reason = refused.reason
            return None

    async def resumed(self, reply: Reply, serving: Backend, *, back: bool = False) -> Run | None:
        """Continue a reply on another backend, the next if that fails; None if none can.

        One more try goes to the steadiest of all, the one that served it too. `back`: ask that one in turn as well.
        `last_reason` is then a passing one, if there is one.
        """
        self.last_reason = NO_BACKEND
        self._blame.over = False  # of an earlier search: the stream had text since, or it is paused and tries again
        names = [candidate.name for candidate in self.rank(self.policy, serving, reply, back=back)]
        passing: list[str] = []
        for _ in range(2):
            race = Race(self, reply, names, lambda: (self._recorded.runway_s or 0.0) <= 0.0)
            try:
                return await race.run()
            except UpstreamError as problem:
                passing += [reason for _, reason in race.failures if not is_of_stream(reason)]
                self.last_reason = passing[-1] if passing else problem.reason
            if self._blame.over or is_of_stream(self.last_reason):
                break
            names = self._last_resort(reply, serving)
        return None

    def _last_resort(self, reply: Reply, serving: Backend) -> list[str]:
        """Return the backend for the last try to continue a reply: of all, one with the fewest recent failures."""
        found = self._pool.backends.steadiest(self.possible(serving, reply, back=True))
        policy = self._pool.settings.direct_placement
        return [self._pool.backends.pick(policy, found, self.demand(policy, reply)).name] if found else []

    async def destination(self, name: str, reply: Reply) -> Run:
        """Open a backend that continues where the reply stands, and read it until it has something for the reader.

        Before the first token the request is sent unchanged; as long as there is no other backend to be asked, this one
        may be silent. Raises UpstreamError.
        """
        backend = self._pool.backends.get(name)
        limit_s: float | None = self.silent_s
        if reply.begun:
            carried = await self.carried(backend, reply)
            left = resume.left(reply, carried, self.length(backend))
            if left is None:
                raise UpstreamError(NOTHING_LEFT)
            way = self.way(backend, reply)
            if way is None:  # what the backend takes has changed since it was ranked
                raise UpstreamError(IGNORED)
            if way == "chat":
                echo = len(reply.prompt_ids or ()) + carried
                body = resume.native_body(reply, carried, left)
                run = await self._open(backend, self._path, body, reply, carried, limit_s=limit_s, echo=echo)
            else:
                body = resume.resume_body(reply, carried, left)
                run = await self._open(backend, self._path_to(COMPLETIONS), body, reply, carried, limit_s=limit_s)
        else:
            if not self._hedge_to(backend):
                limit_s = None
            try:
                run = await self._open(backend, self._path, self._body_for(backend), reply, limit_s=limit_s)
            except UpstreamError:
                self._tried.add(name)
                raise
        try:
            async with asyncio.timeout(limit_s):
                await self._read_ahead(run)
        except BaseException as problem:
            run.close()
            if not isinstance(problem, asyncio.CancelledError):
                self._tried.add(name)
            if isinstance(problem, TimeoutError):
                raise UpstreamError("silent") from None
            raise
        return run

    async def _read_ahead(self, run: Run) -> None:
        if not run.streams:
            raise UpstreamError(str(run.response.status))
        while True:
            lines = await run.read()
            for line in lines:
                if is_break(line):
                    raise UpstreamError(break_of(line))
                if line.trouble == IGNORED:
                    self._pool.backends.continues(run.backend, chats=None)
                if line.trouble in (DIFFERS, IGNORED):
                    raise UpstreamError(line.trouble)
            run.held += [(run.read_ns, line) for line in lines]
            if any(line.text or line.finish is not None or line.ends is not None for line in lines):
                return
            if run.over:
                raise UpstreamError("unfinished")

    async def _open(
        self,
        backend: Backend,
        path: str,
        body: Sendable,
        reply: Reply,
        carried: int | None = None,
        *,
        limit_s: float | None,
        echo: int | None = None,
    ) -> Run:
        """Send a request, and wait for its headers for so long, None: as long as it takes. Raises UpstreamError.

        `echo`: as for `UpstreamResponse`.
        """
        tokens = self._prompt + (carried or 0)
        headers = self._headers if body is self._sent else self._own_headers
        placement = None if self._turn is None else self._turn.take_placement()
        self._pool.backends.begin(backend, tokens, tokens)
        sent_ns = monotonic_ns()
        try:
            async with asyncio.timeout(limit_s):
                trailers = self._trailers if carried is None else ()
                response = await self._pool.upstream.open(backend, "POST", path, headers, body, trailers)
        except BaseException as problem:
            if placement is not None:
                placement.end(whole=False)
            self._pool.backends.end(backend, tokens, tokens)
            if isinstance(problem, TimeoutError):
                raise UpstreamError("silent") from None
            raise
        upstream_response = UpstreamResponse(
            reply, backend.kind, carried, most_prompt_tokens=self.length(backend) or MAX_PROMPT, echo=echo
        )
        one_prompt = self._owned.choices == 1
        run = Run(
            backend,
            response,
            upstream_response,
            self._pool.backends,
            tokens,
            one_prompt=one_prompt,
            placement=placement,
            sent_ns=sent_ns,
            spoke=self._spoke,
        )
        run.lag = self._pool.lag
        await run.sniff(limit_s)
        return run

    async def carried(self, backend: Backend, reply: Reply) -> int:
        """Return the number of output ids whose text the reader has; the backend is asked if it does not follow.

        Raises UpstreamError if it cannot be found out.
        """
        carry = resume.Carry(reply)
        path = self._path_to(COMPLETIONS).partition("?")[0].removesuffix("/v1" + COMPLETIONS)
        while carry.missing is not None:
            body = resume.detokenize_body(reply, carry.missing)
            carry.answer(await text_of_ids(self._pool, backend, path, self._own_headers, body))
        if carry.count is None:
            raise UpstreamError(carry.reason or resume.UNFINISHED)
        return carry.count

    def _path_to(self, end: str) -> str:
        path, mark, query = self._path.partition("?")
        return path.removesuffix(CHAT).removesuffix(COMPLETIONS) + end + mark + query

    def _body_for(self, backend: Backend) -> Sendable:
        brings = self._owned.endpoint in dialect_of(backend.kind).ids_of
        return self._owned.body_with_ids() if brings and not self._owned.asked_ids else self._sent

    # Results.

    def _spoke(self, backend: Backend) -> None:
        """Note that a backend has brought a token."""
        self.hedging.end()
        self._blame.served(backend)

    def worked(self, backend: Backend) -> None:
        """Note that a backend served the request to its end: its headers alone prove nothing."""
        self._pool.backends.worked(backend)

    def broke(self, backend: Backend, reason: str, *, spoke: bool = False) -> None:
        """Note that a backend did not serve the request, or not to its end; `spoke`: it had sent a token."""
        self._note(backend, reason, spoke=spoke)

    def failed(self, name: str, reason: str) -> None:
        """Note that a destination did not go on."""
        self._note(self._pool.backends.get(name), reason)

    @property
    def gives_up(self) -> bool:
        """Tell whether no other backend is asked in turn: the request broke several, and may be the cause."""
        return self._blame.last

    def _note(self, backend: Backend, reason: str, *, spoke: bool = False) -> None:
        self.last_reason = reason
        self._pool.metrics.failed_over(reason)
        # A full backend is alive; if 429 ejected it, a full fleet would serve no request.
        if reason != BUSY and not is_of_stream(reason):
            refused = reason == REFUSED
            self._blame.failed(backend, broke=not (refused or spoke or reason.isdecimal()), refused=refused)

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

    @property
    def has_answer(self) -> bool:
        """Tell whether there is an answer that is no stream, to be passed on."""
        return self._answer is not None

    def take_answer(self) -> Run | None:
        """Return the last answer that was no stream, for the caller to pass on; None if there was none."""
        answer, self._answer = self._answer, None
        return answer

    def drop_answer(self) -> None:
        """Close the last answer, if it was not taken."""
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.close()


def _nothing() -> None:
    """Do nothing."""


async def text_of_ids(pool: Pool, backend: Backend, path: str, headers: CIMultiDict[str], body: bytes) -> str | None:
    """Return a backend's text for the ids in a body, None if it has none; `path`: that of the API, without `/v1`.

    Raises UpstreamError if it does not answer, which says nothing about the ids.
    """
    path, within_s = path + resume.DETOKENIZE_PATH, pool.settings.failover.detokenize_s
    status, text = await pool.upstream.request(backend, "POST", path, headers, body, within_s)
    if status in TRY_ELSEWHERE:
        raise UpstreamError(str(status))
    return resume.detokenized(text) if status == OK else None
