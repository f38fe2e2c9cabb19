"""Durable delivery of messages to one channel: the queue survives a restart, given-up messages go to a file."""

from __future__ import annotations

import logging
import threading
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from otel_llm.export.attempt import Attempt, backoff_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from otel_llm.shared.clock import Clock

GIVE_UP_S: Final = 86_400.0
"""How long a message is tried: an alert that is a day old helps no more."""
LONGEST_BACKOFF_S: Final = 300.0
MOST_WAITING: Final = 10_000
"""Messages that wait for one channel; any beyond are given up."""
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Message:
    """A message to deliver; messages with the same `about` arrive in their order.

    `to`: the channel; `first_ns`: when it was made; `next_ns`: when it is tried again, unix ns.
    """

    id: str
    to: str
    about: str
    body: str
    first_ns: int
    next_ns: int
    tries: int = 0

    def record(self) -> dict[str, Any]:
        """Return it as it stands in the state file."""
        return asdict(self)


@dataclass(slots=True)
class DeliveryStats:
    """Counts of messages by result."""

    sent: int = 0
    given_up: int = 0
    retries: int = 0


@dataclass(slots=True)
class DurableQueue:
    """A queue of messages to one channel, with a thread of its own: `start`, `offer` each, `stop`.

    `deliver` makes one attempt and raises nothing; `settled` is called when the waiting messages have changed;
    `give_up` takes those that did not arrive, with the reason.
    """

    channel: str
    clock: Clock
    deliver: Callable[[Message], Attempt]
    settled: Callable[[], None]
    give_up: Callable[[Message, str], None]
    counts: DeliveryStats = field(default_factory=DeliveryStats)
    _waiting: list[Message] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=lambda: threading.Condition(threading.RLock()))
    _stopping: bool = False
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name=f"otel-llm-tell-{self.channel}", daemon=True)
        self._thread.start()

    def offer(self, messages: Iterable[Message]) -> None:
        """Take messages; never waits for the other side."""
        beyond = []
        with self._changed:
            for message in messages:
                if len(self._waiting) < MOST_WAITING:
                    self._waiting.append(message)
                else:
                    beyond.append(message)
            self._changed.notify_all()
        for message in beyond:
            self._lose(message, f"more than {MOST_WAITING} messages wait")

    def waiting(self) -> list[Message]:
        """Return the waiting messages, the one that is being tried included."""
        with self._changed:
            return list(self._waiting)

    def stop(self, grace_s: float) -> None:
        """Make the attempts that are due within the grace; the rest waits for the next run."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(grace_s)

    def step(self) -> bool:
        """Make one attempt if one is due; return whether one was made."""
        now_ns = self.clock.now_ns()
        message = next((one for one in self._heads() if one.next_ns <= now_ns), None)
        if message is None:
            return False
        try:
            attempt = self.deliver(message)
        except Exception as error:  # noqa: BLE001  a bug of ours: the message stays, the others are tried
            _log.exception("otel-llm: a message to %s could not be sent", self.channel)
            attempt = Attempt("retry", f"{type(error).__name__}: {error}"[:200])
        if attempt.verdict == "retry" and now_ns - message.first_ns < GIVE_UP_S * 1e9:
            self.counts.retries += 1
            self._log_once(message, attempt.reason)
            wait_s = backoff_s(message.tries, LONGEST_BACKOFF_S)
            if attempt.after_s is not None:  # no sooner: a receiver that asks for 0 s is tried for a day
                wait_s = min(max(attempt.after_s, wait_s), LONGEST_BACKOFF_S)
            with self._changed:
                message.tries += 1
                message.next_ns = self.clock.now_ns() + round(wait_s * 1e9)
        else:
            if attempt.verdict == "accepted":
                self.counts.sent += 1
            else:
                message.tries += 1
                self._lose(message, attempt.reason)
            with self._changed:
                self._waiting.remove(message)
        self.settled()
        return True

    def next_ns(self) -> int | None:
        """Return when the next attempt is due; None where nothing waits."""
        return min((message.next_ns for message in self._heads()), default=None)

    def _heads(self) -> list[Message]:
        """Return the first message about each thing: the others wait behind it."""
        heads: dict[str, Message] = {}
        with self._changed:
            for message in self._waiting:
                heads.setdefault(message.about, message)
        return list(heads.values())

    def _lose(self, message: Message, reason: str) -> None:
        self.counts.given_up += 1
        _log.warning("otel-llm: given up: message %s to %s: %s", message.id, self.channel, reason)
        self.give_up(message, reason)

    def _log_once(self, message: Message, reason: str) -> None:
        if not message.tries:
            _log.warning("otel-llm: message %s to %s will be repeated: %s", message.id, self.channel, reason)

    def _run(self) -> None:
        while True:
            while self.step():
                pass
            with self._changed:  # one lock for the check and the wait, so that no change between them is missed
                if self._stopping:
                    return
                next_ns = self.next_ns()
                self._changed.wait(None if next_ns is None else max(0.0, (next_ns - self.clock.now_ns()) / 1e9))
