"""The interface of executors: try to do one action once, and check whether it was done."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal, Protocol

from otel_llm.export.transport.attempt import retry_after_s
from otel_llm.shared.printable import one_line

if TYPE_CHECKING:
    from otel_llm.actions.delivery.http_request import Answer, NoAnswerError
    from otel_llm.actions.execute.events import Order

RETRYABLE: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Answers after which a second try may succeed, if there is time for it."""
ALREADY: Final = 409
"""The receiver is doing the action of this id now."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The result of one try.

    `done`: the receiver has done it; `accepted`: it will do it; `refused`: it will not do it; `again`: it could not
    now, or did not answer, and `maybe_sent` tells whether it may have received it all the same. `after_s`: the pause
    that it asks for before another try. `late`: it used up the time of the try, as a receiver that hangs does.
    """

    result: Literal["done", "accepted", "refused", "again"]
    detail: str = ""
    maybe_sent: bool = False
    after_s: float = 0.0
    late: bool = field(default=False, compare=False)


class Executor(Protocol):
    """An executor of some verbs; called in several threads at a time."""

    @property
    def target(self) -> str:
        """Return the name of what it asks, by which its tries are limited, as metrics and records show it."""

    @property
    def timeout_s(self) -> float:
        """Return how long a try may take at most, whatever the action's time to live."""

    @property
    def exclusive(self) -> bool:
        """Return whether only one action may be open for an instance at one time."""

    @property
    def in_stream(self) -> bool:
        """Return whether the effect shows in the action's stream, as its end."""

    def attempt(self, order: Order, now_ns: int, timeout_s: float) -> Reply:
        """Try once; raises nothing."""

    def check(self, timeout_s: float) -> bool | None:
        """Return whether the action is seen to be done, None if that cannot be checked; raises nothing."""


def of_answer(answer: Answer) -> Reply:
    """Return the reply that an answer's status stands for; its body is not read."""
    late = answer.body is None
    if answer.ok:
        return Reply("accepted", late=late)
    if answer.status == ALREADY:
        return Reply("accepted", "it is doing it already", late=late)
    reason = f"HTTP {answer.status}"
    if 300 <= answer.status < 400:
        return Reply("refused", f"{reason}: redirects are not followed", late=late)
    if answer.status in RETRYABLE:
        return Reply("again", reason, after_s=retry_after_s(answer.headers.get("retry-after")) or 0.0, late=late)
    return Reply("refused", reason, late=late)


def of_silence(error: NoAnswerError) -> Reply:
    """Return the reply that a missing answer stands for."""
    return Reply("again", error.reason, maybe_sent=error.maybe_sent, late=error.late)


def result_of(answer: Answer) -> Reply:
    """Return the reply of a receiver of CloudEvents: its status, and `{"result": ..., "detail": ...}` if present.

    Any other body is no mistake: the status alone counts then.
    """
    reply = of_answer(answer)
    if not answer.ok:
        return reply
    if answer.body is None:  # it may have said that the action was refused
        return replace(reply, result="again", detail=f"HTTP {answer.status}, no body in time", maybe_sent=True)
    try:
        reported = json.loads(answer.body)
    except (ValueError, RecursionError):
        return reply
    result = reported.get("result") if isinstance(reported, dict) else None
    detail = one_line(reported.get("detail")) if isinstance(reported, dict) else ""
    if result == "done":
        return Reply("done", detail)
    if result in ("refused", "unknown_request"):
        return Reply("refused", f"{result}: {detail}" if detail else str(result))
    return Reply("accepted", detail)
