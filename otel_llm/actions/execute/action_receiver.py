"""The receiving end: accept a signed action once, while it is still worth something.

The owner of the streams (a relay, a gateway) receives actions with it. `ActionReceiver.take` checks a message, passes
each action on once, and gives the same answer to the same id again. `Admission` is the same in two steps, for actions
that take time: `admit` checks a message, `complete` keeps the answer.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from otel_llm.actions.delivery.signing import TOLERANCE_S, SignatureError, verify
from otel_llm.actions.execute.events import TYPE_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

MOST_BODY_BYTES: Final = 256 * 1024
REMEMBERED: Final = 100_000
"""Ids of actions that are remembered: more than arrive while a signature is accepted."""
LONGEST_ID: Final = 256
Result = Literal["done", "accepted", "refused", "unknown_request"]


@dataclass(frozen=True, slots=True)
class ActionRequest:
    """One requested action: its verb, its request or labels, its expiry (unix ns), and the reason.

    `request`: (trace id, span id, choice) in hex, None for scopes instance and class; `request_id`: the engine's id of
    the request, if known; `candidates`: the streams that `preempt` may take, first choice first, as in the record.
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
    relay: str = ""
    """The receiver that the message is for, with its start-up: `data.relay`, "" if it names none."""


@dataclass(frozen=True, slots=True)
class Response:
    """The answer to a message: an HTTP status, and the result of the action."""

    status: int
    result: Result | None = None
    detail: str = ""
    relay: str = ""
    """The receiver's own name, in the answer to a message that is for another."""
    repeated: bool = field(default=False, compare=False)
    """Whether the same id was received before."""

    @property
    def body(self) -> bytes:
        """Return the answer's body."""
        reported = {"result": self.result, "detail": self.detail} | ({"relay": self.relay} if self.relay else {})
        return json.dumps(reported, separators=(",", ":")).encode()


_BUSY: Final = Response(409, "accepted", "this action is being done", repeated=True)


@dataclass(slots=True)
class Admission:
    """The check of messages and the answers to those that were admitted; thread-safe.

    Each message whose action `admit` returns is answered by one `complete`, now or later.
    """

    secrets: Sequence[bytes]
    tolerance_s: float = TOLERANCE_S
    remembered: int = REMEMBERED
    """Ids that are remembered at most; the oldest are forgotten first."""
    relay: str = ""
    """The name of this receiver and start-up, which a message must state; "": any message is taken. Else one that was
    recorded elsewhere, or before a restart, could be sent again, since its id is not known here."""
    _answers: OrderedDict[str, Response | None] = field(default_factory=OrderedDict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def admit(
        self, headers: Mapping[str, str], body: bytes, now_ns: int, expiry_now_ns: int | None = None
    ) -> Response | ActionRequest:
        """Return the action of a message received at `now_ns` (unix), or the immediate answer to it.

        It is an action once for an id, until `complete`. Names of headers are in lower case. `expiry_now_ns`: the same
        instant by the clock that expiry is measured with (unix ns), if that is another clock.
        """
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
        if self.relay and asked.relay != self.relay:
            return Response(200, "refused", "for another relay, or for this one before it started", self.relay)
        with self._lock:
            if message_id in self._answers:
                known = self._answers[message_id]
                return _BUSY if known is None else replace(known, repeated=True)
            if (now_ns if expiry_now_ns is None else expiry_now_ns) >= asked.expires_unix_nano:
                return Response(200, "refused", "expired")
            self._answers[message_id] = None
            while len(self._answers) > self.remembered:
                self._answers.popitem(last=False)
        return asked

    def complete(self, action_id: str, answer: Response) -> None:
        """Keep the answer to an admitted action; its id gets the same again. An unknown id changes nothing."""
        with self._lock:
            if action_id in self._answers:
                self._answers[action_id] = answer


class ActionReceiver(Admission):
    """A receiver of actions over HTTP, for any server; thread-safe.

    `act` performs an action and returns its result; it is called once for an id, however often that arrives.
    """

    __slots__ = ("act",)

    def __init__(
        self,
        secrets: Sequence[bytes],
        act: Callable[[ActionRequest], tuple[Result, str]],
        tolerance_s: float = TOLERANCE_S,
    ) -> None:
        super().__init__(secrets, tolerance_s)
        self.act = act

    def take(self, headers: Mapping[str, str], body: bytes, now_ns: int) -> Response:
        """Return the answer to a POST received at `now_ns` (unix); names of headers in lower case."""
        asked = self.admit(headers, body, now_ns)
        if isinstance(asked, Response):
            return asked
        answer = Response(500, None, "it failed here")
        try:
            answer = Response(200, *self.act(asked))
        finally:
            self.complete(asked.id, answer)
        return answer


def read_action(body: bytes) -> ActionRequest:
    """Read a CloudEvent of ours; raises ValueError, with the reason, if it is none."""
    try:
        event = json.loads(body)
        kind, data = event["type"], event["data"]
        request, action = data.get("request"), data["action"]
        if len(str(event["id"])) > LONGEST_ID:
            raise ValueError(f"an id of more than {LONGEST_ID} characters")
        if event["specversion"] != "1.0" or kind != f"{TYPE_PREFIX}{action}.v1":
            raise ValueError(f"an event of type {kind!r}, which is not known here")
        return ActionRequest(
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
            relay=str(data.get("relay", "")),
        )
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"no action of ours: {type(error).__name__} {error}") from None
