"""The other end: take an action that the collector asks for, once, if it is signed and still worth something.

This is what whoever owns streams (a relay, a gateway) needs to act on decisions: `take` believes a message or says with
which HTTP status it is refused, hands each action over once, and gives the same answer to the same id again.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from otel_llm.actions.events import TYPE_PREFIX
from otel_llm.actions.signing import TOLERANCE_S, SignatureError, verify

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

MOST_BODY_BYTES: Final = 256 * 1024
REMEMBERED: Final = 100_000
"""Ids of actions that were taken: more than come while a signature is believed."""
Result = Literal["done", "accepted", "refused", "unknown_request"]


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked: an action, of which request or labels, until when (unix ns), and why.

    `request`: (trace id, span id, choice) in hex, None for scopes instance and class; `request_id`: what the engine
    calls it, where that is known; `candidates`: whom `preempt` could take, first choice first, as the record has them.
    """

    id: str
    action: str
    arguments: Mapping[str, Any]
    expires_unix_nano: int
    rule: str
    request: tuple[str, str, int] | None
    request_id: str | None
    labels: Mapping[str, str]
    facts: Mapping[str, Any]
    candidates: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Response:
    """What to answer: an HTTP status, and what became of the action."""

    status: int
    result: Result | None = None
    detail: str = ""

    @property
    def body(self) -> bytes:
        """Return the answer's body."""
        return json.dumps({"result": self.result, "detail": self.detail}, separators=(",", ":")).encode()


_BUSY: Final = Response(409, "accepted", "this action is being done")


@dataclass(slots=True)
class ActionDoor:
    """Take actions over HTTP, whatever the server; any thread may ask.

    `act` does one and says what became of it; it is called once for an id, however often that arrives.
    """

    secrets: Sequence[bytes]
    act: Callable[[Asked], tuple[Result, str]]
    tolerance_s: float = TOLERANCE_S
    _answers: OrderedDict[str, Response | None] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, headers: Mapping[str, str], body: bytes, now_ns: int) -> Response:
        """Return what to answer to a POST that came at `now_ns` (unix); names of headers in lower case."""
        if len(body) > MOST_BODY_BYTES:
            return Response(413, None, f"more than {MOST_BODY_BYTES // 1024} KiB")
        try:
            message_id = verify(headers, body, self.secrets, now_ns / 1e9, self.tolerance_s)
        except SignatureError as error:
            return Response(401, None, str(error))
        try:
            asked = read_action(body)
        except ValueError as error:
            return Response(400, None, str(error))
        if asked.id != message_id:
            return Response(400, None, "the event's id is not the message's")
        with self._lock:
            if message_id in self._answers:
                return self._answers[message_id] or _BUSY
            if now_ns >= asked.expires_unix_nano:
                return Response(200, "refused", "expired")
            self._answers[message_id] = None
            while len(self._answers) > REMEMBERED:
                self._answers.popitem(last=False)
        answer = Response(500, None, "it failed here")
        try:
            answer = Response(200, *self.act(asked))
        finally:
            with self._lock:
                if message_id in self._answers:
                    self._answers[message_id] = answer
        return answer


def read_action(body: bytes) -> Asked:
    """Read a CloudEvent of ours; raises ValueError, with words on what is wrong, where it is none."""
    try:
        event = json.loads(body)
        kind, data = event["type"], event["data"]
        request, action = data.get("request"), data["action"]
        if event["specversion"] != "1.0" or kind != f"{TYPE_PREFIX}{action}.v1":
            raise ValueError(f"an event of type {kind!r}, which is not known here")
        return Asked(
            id=str(event["id"]),
            action=str(action),
            arguments=dict(data["arguments"]),
            expires_unix_nano=int(data["expires_unix_nano"]),
            rule=str(data["rule"]),
            request=None
            if request is None
            else (str(request["trace_id"]), str(request["span_id"]), int(request["choice"])),
            request_id=None if request is None or request["id"] is None else str(request["id"]),
            labels={str(name): str(value) for name, value in data["labels"].items()},
            facts=dict(data["facts"]),
            candidates=[dict(one) for one in data.get("candidates", ())],
        )
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"no action of ours: {type(error).__name__} {error}") from None
