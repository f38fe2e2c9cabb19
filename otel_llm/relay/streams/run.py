"""One backend's answer to an owned request; only this module reads it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import aiohttp

from otel_llm.relay.backends.upstream import UpstreamError, read_some
from otel_llm.shared.clock import monotonic_ns

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_llm.relay.backends.backends import Backend, Backends
    from otel_llm.relay.queueing.polyserve_placer import Placement
    from otel_llm.relay.seam.leg import Leg
    from otel_llm.relay.seam.piece import Piece

TAIL_S: Final = 1.0
"""How long the end of a body is awaited after `[DONE]`: without it the connection cannot be reused."""
EVENT_STREAM: Final = "text/event-stream"


class Run:
    """The event stream of one backend, read piece by piece.

    `tokens`: its load at the beginning, all of it to be prefilled; for `one_prompt` an estimate until its ids arrive.
    `placement`: its place by the policy of the queue, if that has one.
    `read_ns` is the instant of the last read (monotonic ns); `over`: the body has ended. `held` are pieces that were
    read ahead, while another backend still served, with their instants.
    """

    def __init__(
        self,
        backend: Backend,
        response: aiohttp.ClientResponse,
        leg: Leg,
        loads: Backends,
        tokens: int,
        *,
        one_prompt: bool,
        placement: Placement | None = None,
        clock_ns: Callable[[], int] = monotonic_ns,
    ) -> None:
        self.backend = backend
        self.response = response
        self.leg = leg
        self.read_ns = 0
        self.over = False
        self.held: list[tuple[int, Piece]] = []
        self._placement = placement
        self._clock_ns = clock_ns
        self._loads = loads
        self._tokens = tokens
        self._waiting = tokens
        """Tokens to prefill before the first output token."""
        self._estimate: int | None = tokens if one_prompt else None
        self._one_prompt = one_prompt
        self._token_ns = 0
        """The instant of the last token; 0 where that is not known."""
        self._read_bytes = 0
        self._heard = False
        self._done = False
        self._closed = False

    @property
    def streams(self) -> bool:
        """Tell whether the answer is an event stream that can be read."""
        encoded = self.response.headers.get("Content-Encoding", "identity").lower() != "identity"
        return self.response.status == 200 and self.response.content_type == EVENT_STREAM and not encoded

    @property
    def closed(self) -> bool:
        """Tell whether it was closed here, and is no longer read."""
        return self._closed

    @property
    def unread(self) -> bool:
        """Tell whether `read` will return something that was received already."""
        return not self._closed and self.response.content.total_bytes > self._read_bytes

    async def read(self, silent_s: float | None = None) -> list[Piece]:
        """Return the next pieces; empty while a line is unfinished and, with `over`, at the end of the body.

        `silent_s`: the longest wait for the first event (s). Raises UpstreamError: `silent`, `broken`.
        """
        late = self.response.content.total_bytes > self._read_bytes
        limit_s = TAIL_S if self._done else None if self._heard else silent_s
        try:
            if limit_s is None:
                data = await read_some(self.response)
            else:
                async with asyncio.timeout(limit_s):
                    data = await read_some(self.response)
        except TimeoutError:
            raise UpstreamError("silent") from None
        except (aiohttp.ClientError, OSError) as problem:
            raise UpstreamError("broken") from problem
        self.read_ns = self._clock_ns()
        self._read_bytes += len(data)
        if not data:
            self.over = True
            return self._noted(self.leg.end(), late=late)
        return self._noted(self.leg.feed(data), late=late)

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

    def _noted(self, pieces: list[Piece], *, late: bool) -> list[Piece]:
        if not self._heard:
            self._heard = any(piece.chunk is not None or piece.done for piece in pieces)
        self._done = self._done or any(piece.done for piece in pieces)
        if self._estimate is not None:
            self._weigh(self._estimate, pieces)
        if not self._closed:
            self._time(pieces, late=late)
        return pieces

    def _time(self, pieces: list[Piece], *, late: bool) -> None:
        """Note the first token, and the time between tokens.

        `late`: bytes were there before they were read, as behind a slow client. Their arrival is not known, so no gap
        ends or begins there. Tokens of several choices come from one iteration: they give none.
        """
        tokens = sum(len(piece.ids) + len(piece.texts) for piece in pieces)
        if not tokens:
            return
        if self._waiting:
            self._loads.prefilled(self.backend, self._waiting)
            self._waiting = 0
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

    def _weigh(self, estimate: int, pieces: list[Piece]) -> None:
        """Count the prompt by its ids, which are in the first chunk."""
        for piece in pieces:
            if piece.chunk is not None:
                self._estimate = None
                if piece.chunk.prompt_ids is not None:
                    self.grow(len(piece.chunk.prompt_ids) - estimate)
                return
