"""Receive signed actions on the web port: `POST /v1/actions`, the CloudEvents of `docs/actions.md`.

The signature authenticates the sender. Nothing else does: no bearer token, no content type, no host name.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from aiohttp import web

from otel_llm.actions.execute.action_receiver import MOST_BODY_BYTES, Response
from otel_llm.actions.execute.executors import RELAY_DOES
from otel_llm.shared.clock import wall_ns
from otel_llm.shared.printable import one_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_llm.actions.execute.action_receiver import ActionRequest, Admission
    from otel_llm.actions.execute.open_actions import Completion
    from otel_llm.relay.deciding.command import Command
    from otel_llm.relay.deciding.command_reader import CommandReader
    from otel_llm.shared.clock import Clock

ANSWER_S: Final = 0.25
"""How long an answer is delayed for the outcome."""
BODY_S: Final = 10.0
"""How long a body may take to arrive."""
MOST_READING: Final = 64
"""Bodies that are read at one time, before their signatures are checked."""
OTHER: Final = "other"


class CommandReceiver:
    """The receiver of actions; `do` does one and calls back once with its result.

    `clock` is the relay's, by which actions expire. `stopping` tells whether the relay stops. `counted` gets the verb
    and the result of each message, for the metrics.
    """

    def __init__(
        self,
        admission: Admission,
        clock: Clock,
        reader: CommandReader,
        do: Callable[[Command, Callable[[Completion], None]], None],
        stopping: Callable[[], bool],
        counted: Callable[[str, str], None],
        *,
        body_s: float = BODY_S,
        most_reading: int = MOST_READING,
    ) -> None:
        self._admission = admission
        self._clock = clock
        self._reader = reader
        self._do = do
        self._stopping = stopping
        self._counted = counted
        self._body_s = body_s
        self._most_reading = most_reading
        self._reading = 0

    async def post(self, request: web.Request) -> web.Response:
        """Answer one POST."""
        asked = await self._admitted(request)
        if isinstance(asked, Response):
            action, answer = OTHER, asked
        else:
            action = asked.action if asked.action in RELAY_DOES else OTHER
            answer = Response(500, None, "it failed here")
            try:
                answer = await self._done(asked)
            finally:
                self._admission.complete(asked.id, answer)
        self._counted(action, _result(answer))
        return web.Response(body=answer.body, status=answer.status, content_type="application/json")

    async def _admitted(self, request: web.Request) -> ActionRequest | Response:
        body = await self._body(request)
        if isinstance(body, Response):
            return body
        headers = {name.lower(): value for name, value in request.headers.items()}
        return self._admission.admit(headers, body, wall_ns(), self._clock.now_ns())

    async def _body(self, request: web.Request) -> bytes | Response:
        """Read a body; the first byte beyond the limit is enough to refuse it."""
        if self._reading >= self._most_reading:
            return Response(429, None, f"{self._most_reading} bodies are being read")
        self._reading += 1
        body = bytearray()
        try:
            async with asyncio.timeout(self._body_s):
                while len(body) <= MOST_BODY_BYTES and (found := await request.content.readany()):
                    body += found
        except TimeoutError:
            return Response(408, None, f"the body did not come within {self._body_s:g} s")
        except web.RequestPayloadError:
            return Response(400, None, "the body is not whole")
        finally:
            self._reading -= 1
        return bytes(body)

    async def _done(self, asked: ActionRequest) -> Response:
        """Do an action; return the result so far, at the time of the answer."""
        if self._stopping():
            return Response(200, "refused", "the relay is stopping")
        command = self._reader.read(asked)
        if isinstance(command, Response):
            return command
        outcome: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()

        def completed(how: Completion) -> None:
            if not outcome.done():
                outcome.set_result(how)

        self._do(command, completed)
        done, _ = await asyncio.wait({outcome}, timeout=ANSWER_S)
        return _answer(outcome.result()) if done else Response(200, "accepted", "begun")


def _answer(how: Completion) -> Response:
    """Return the answer for an action that was completed in time."""
    moved = how.migration
    if how.outcome == "done":
        reported = how.detail or ("" if moved is None else f"moved from {moved.source} to {moved.to}")
        return Response(200, "done", one_line(reported))
    if how.outcome == "unconfirmed":  # it was begun, and its end is not known
        return Response(200, "accepted", one_line(how.detail))
    reported = how.detail if how.outcome == "failed" else f"{how.outcome}: {how.detail}"
    return Response(200, "refused", one_line(reported))


def _result(answer: Response) -> str:
    """Return the result of an answer, for the metrics."""
    if answer.repeated:
        return "repeated"
    return "rejected" if answer.result is None else answer.result
