"""One backend's answer to an owned request; only this module reads it."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

import aiohttp

from otel_llm.instrumentation.parse.http_body import coding_of
from otel_llm.instrumentation.parse.sse import begins_events
from otel_llm.relay.backends.backend_connection import Answer
from otel_llm.relay.backends.upstream import UpstreamError, read_some
from otel_llm.shared.clock import monotonic_ns

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_llm.relay.backends.backend import Backend
    from otel_llm.relay.backends.backends import Backends
    from otel_llm.relay.loop_lag import LoopLag
    from otel_llm.relay.queueing.polyserve_placer import Placement
    from otel_llm.relay.splice.line import Line
    from otel_llm.relay.splice.upstream_response import UpstreamResponse

TAIL_S: Final = 1.0
"""How long the end of a body is awaited after `[DONE]`: without it the connection cannot be reused."""
REST_S: Final = 2.0
"""How long anything more of a whole reply is awaited, its usage and `[DONE]`; comments are nothing more."""
EVENT_STREAM: Final = "text/event-stream"
OK: Final = 200


class Run:
    """The answer of one backend; an event stream is read line by line.

    `streams`: it is an event stream, once `sniff` has read; `begun`: the bytes that this took, and `read` returns.
    `tokens`: its load at the beginning, all of it to be prefilled; for `one_prompt` an estimate until its ids arrive.
    `placement`: its place by the policy of the queue, if that has one. `sent_ns`: when the request was sent (monotonic
    ns). `spoke` is called with its backend at its first token.
    `patient`: its first event is waited for however long it takes, as no other backend has the request.
    `read_ns` is the instant of the last read, `arrived_ns` the first at which its bytes may have been here; that is the
    same behind a slow client (monotonic ns). `lag` tells; None: not known. `over`: the body has ended. `held`
    are lines that were read ahead, while another backend still served, with their instants.
    """

    def __init__(
        self,
        backend: Backend,
        response: aiohttp.ClientResponse,
        upstream_response: UpstreamResponse,
        loads: Backends,
        tokens: int,
        *,
        one_prompt: bool,
        placement: Placement | None = None,
        sent_ns: int = 0,
        spoke: Callable[[Backend], None] | None = None,
        clock_ns: Callable[[], int] = monotonic_ns,
    ) -> None:
        self.backend = backend
        self.response = response
        self.upstream_response = upstream_response
        self.read_ns = self.arrived_ns = clock_ns()
        self.lag: LoopLag | None = None
        self.over = False
        self.held: list[tuple[int, Line]] = []
        self.streams = False
        self.begun = b""
        self.patient = False
        self._placement = placement
        self._sent_ns = sent_ns
        self._spoke = spoke
        self._clock_ns = clock_ns
        self._loads = loads
        self._tokens = tokens
        self._waiting = tokens
        """Tokens to prefill before the first output token."""
        self._estimate: int | None = tokens if one_prompt else None
        self._one_prompt = one_prompt
        self._token_ns = 0
        """The instant of the last token; 0 if that is not known."""
        self._read_bytes = 0
        self._heard = False
        self._parsing: asyncio.Future[list[Line]] | None = None
        """The lines of the last read, while a thread makes them."""
        self._ended = False
        """Whether the last read found the end of the body."""
        self._late = False
        """Whether the bytes of the last read were there before."""
        self._waited_s = 0.0
        """How long reads have waited since the last event."""
        self._ends = False
        self._begun = False
        self._done = False
        self._closed = False

    @property
    def packed(self) -> bool:
        """Tell whether the answer is compressed: it is passed on unread."""
        return bool(coding_of(",".join(self.response.headers.getall("Content-Encoding", []))))

    @property
    def closed(self) -> bool:
        """Tell whether it was closed here, and is no longer read."""
        return self._closed

    @property
    def has_token(self) -> bool:
        """Tell whether it has sent a token."""
        return self._begun

    @property
    def unread(self) -> bool:
        """Tell whether `read` will return something that was received already."""
        if self._closed:
            return False
        return bool(self.begun) or self._parsing is not None or self.response.content.total_bytes > self._read_bytes

    async def sniff(self, silent_s: float | None) -> None:
        """Find out whether the answer is an event stream: as its content type says, or else its first bytes.

        `silent_s`: the longest wait for these (s), None: as long as it takes. Raises UpstreamError: `silent`, `broken`;
        then it is closed.
        """
        if self.response.status != OK or self.packed:
            return
        if self.response.content_type == EVENT_STREAM:
            self.streams = True
            return
        try:
            async with asyncio.timeout(silent_s):
                self.streams = await self._begins_events()
        except BaseException as problem:
            self.close()
            if isinstance(problem, TimeoutError):
                raise UpstreamError("silent") from None
            raise

    async def _begins_events(self) -> bool:
        streams: bool | None = None
        while streams is None and (data := await self._received()):
            self.begun += data
            streams = begins_events(self.begun)
        return bool(streams)

    async def read(self, silent_s: float | None = None) -> list[Line]:
        """Return the next lines; empty while a line is unfinished and, with `over`, at the end of the body.

        `silent_s`: the longest wait for the first event (s). Raises UpstreamError: `silent`, `broken`.
        """
        if self._parsing is not None:  # the wait for it was ended
            return self._noted(await self._parsed())
        if self.begun:
            data, self.begun = self.begun, b""
            self._late = False
            return self._noted(await self.lines(data))
        late = self._late = self.response.content.total_bytes > self._read_bytes
        patient = self._heard or self.patient
        if self._ends or self._done:
            limit_s: float | None = max(0.0, (TAIL_S if self._done else REST_S) - self._waited_s)
        else:
            limit_s = None if patient else silent_s
        before_ns, began_ns = self.read_ns, self._clock_ns()
        data = await self._received(limit_s)
        self._waited_s += (self.read_ns - began_ns) / 1e9
        if self.lag is not None and not late and isinstance(self.response, Answer):
            received_ns = self.response.received_ns
            if received_ns is not None:
                self.arrived_ns = max(before_ns, self.lag.arrived_ns(min(received_ns, self.read_ns)))
        return self._noted(await self.lines(data))

    async def lines(self, data: bytes) -> list[Line]:
        """Return the lines of the next bytes of the body, b"" at its end; a thread reads large ones."""
        parse = partial(self.upstream_response.feed, data) if data else self.upstream_response.end
        self._ended = not data
        if not self.upstream_response.is_long(data):
            self.over = self._ended
            return parse()
        self._parsing = asyncio.get_running_loop().run_in_executor(None, parse)
        return await self._parsed()

    async def _parsed(self) -> list[Line]:
        assert self._parsing is not None  # noqa: S101
        lines = await asyncio.shield(self._parsing)
        self._parsing, self.over = None, self._ended
        return lines

    async def _received(self, limit_s: float | None = None) -> bytes:
        """Return the next bytes of the answer, b"" at its end. Raises UpstreamError."""
        try:
            async with asyncio.timeout(limit_s):
                data = await read_some(self.response)
        except TimeoutError:
            raise UpstreamError("silent") from None
        except (aiohttp.ClientError, OSError) as problem:
            raise UpstreamError("broken") from problem
        self.read_ns = self.arrived_ns = self._clock_ns()
        self._read_bytes += len(data)
        if data:
            self._loads.heard(self.backend, self.read_ns / 1e9)
        return data

    def grow(self, tokens: int) -> None:
        """Count output tokens in the backend's load, unless the stream is closed."""
        if not self._closed:
            self._tokens += tokens
            self._loads.grow(self.backend, tokens)

    def close(self) -> None:
        """Close the backend's stream, unless it has ended: then its connection is reused."""
        if not self._closed:
            self._closed = True
            body = self.response.content
            if not body.is_eof() and body.exception() is None:
                # aiohttp would raise one exception that it keeps for ever, and whose traceback grows with each reader.
                body.set_exception(aiohttp.ClientConnectionError("closed here"))
            self.response.close()
            if self._placement is not None:
                self._placement.end(whole=self._done)
            self._loads.end(self.backend, self._tokens, self._waiting)

    def _noted(self, lines: list[Line]) -> list[Line]:
        if any(line.chunk is not None or line.done for line in lines):
            self._heard = True
            self._waited_s = 0.0
        for line in lines:
            self._ends = line.ends is not None or (self._ends and not line.goes_on)
            self._done = self._done or line.done
        if self._estimate is not None:
            self._weigh(self._estimate, lines)
        if not self._closed:
            self._time(lines, late=self._late)
        return lines

    def _time(self, lines: list[Line], *, late: bool) -> None:
        """Note the first token, and the time between tokens.

        `late`: bytes were there before they were read, as behind a slow client. Their arrival is not known, so no gap
        ends or begins there. Tokens of several choices come from one iteration: they give none.
        """
        tokens = sum(len(line.ids) + len(line.texts) for line in lines)
        if not tokens:
            return
        if not self._begun:
            self._begun = True
            self._begin()
        if self._placement is not None:
            self._placement.read(tokens, self.read_ns)
        if late or not self._one_prompt:
            self._token_ns = 0
            return
        now_ns, last_ns = self.read_ns, self._token_ns
        self._token_ns = now_ns
        if last_ns:
            backend = self.backend
            backend.gaps.observe(backend.streams, (now_ns - last_ns) / (tokens * 1e9), now_ns / 1e9)

    def _begin(self) -> None:
        """Note the first token."""
        if self._sent_ns:
            self.backend.first_tokens.observe(self._waiting, (self.read_ns - self._sent_ns) / 1e9)
        self._loads.prefilled(self.backend, self._waiting)
        self._waiting = 0
        if self._spoke is not None:
            self._spoke(self.backend)

    def _weigh(self, estimate: int, lines: list[Line]) -> None:
        """Count the prompt by its ids, which are in the first chunk."""
        for line in lines:
            if line.chunk is not None:
                self._estimate = None
                if line.chunk.prompt_ids is not None:
                    self.grow(len(line.chunk.prompt_ids) - estimate)
                return


def close_late(task: asyncio.Task[Run]) -> None:
    """Close the answer of an attempt that was given up in the instant in which it came."""
    if not task.cancelled() and task.exception() is None:
        task.result().close()
