"""Durable delivery of messages to one channel: the queue survives a restart, given-up messages go to a file."""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from dataclasses import asdict, dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from otel_llm.core.fair_shares import FairTable
from otel_llm.export.transport.attempt import Attempt, backoff_s
from otel_llm.formats.records import DEFAULT_TENANT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from otel_llm.shared.clock import Clock

GIVE_UP_S: Final = 86_400.0
"""How long a message is tried: an alert that is a day old helps no more."""
LONGEST_BACKOFF_S: Final = 300.0
MOST_WAITING: Final = 10_000
"""Messages that wait for one channel. For one more, the oldest of the tenant that has the most is given up."""
BACKLOG: Final = 100
"""With more messages than these waiting a channel is behind: a new one does not go at once."""
_Line: TypeAlias = tuple[str, str]
"""A tenant, and what its messages are about."""
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Message:
    """A message to deliver; messages with the same `about` arrive in their order.

    `to`: the channel; `first_ns`: when it was made; `next_ns`: when it is tried again, unix ns. `tenant`: whose streams
    it is about.
    """

    id: str
    to: str
    about: str
    body: str
    first_ns: int
    next_ns: int
    tries: int = 0
    tenant: str = DEFAULT_TENANT

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

    `deliver` makes one attempt and raises nothing; `completed` is called when the waiting messages have changed;
    `give_up` takes those that did not arrive, with the reason.
    """

    channel: str
    clock: Clock
    deliver: Callable[[Message], Attempt]
    completed: Callable[[], None]
    give_up: Callable[[Message, str], None]
    counts: DeliveryStats = field(default_factory=DeliveryStats)
    _waiting: dict[int, Message] = field(default_factory=dict)
    """By identity, in their order."""
    _table: FairTable[int] = field(default_factory=lambda: FairTable(MOST_WAITING))
    """The same."""
    _lines: dict[_Line, deque[Message]] = field(default_factory=dict)
    """The same by tenant and what they are about: the first of a line is tried, the others wait behind it."""
    _ready: dict[str, deque[_Line]] = field(default_factory=dict)
    """The lines whose first may be tried now, by tenant."""
    _later: list[tuple[int, _Line]] = field(default_factory=list)
    """A heap of the lines whose first is tried at an instant."""
    _failing: bool = False
    _turns: Counter[str] = field(default_factory=Counter)
    """When a message of a tenant was tried last, as a number of attempts: the tenants take turns."""
    _attempts: int = 0
    _changed: threading.Condition = field(default_factory=lambda: threading.Condition(threading.RLock()))
    _stopping: bool = False
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name=f"otel-llm-tell-{self.channel}", daemon=True)
        self._thread.start()

    def offer(self, messages: Iterable[Message]) -> None:
        """Take messages; never waits for the other side."""
        beyond: list[Message] = []
        with self._changed:
            for message in messages:
                for gone in self._table.admit(id(message), message.tenant):
                    beyond.append(self._waiting[gone])
                    self._remove(self._waiting[gone])
                self._waiting[id(message)] = message
                line = self._lines.setdefault((message.tenant, message.about), deque())
                line.append(message)
                if len(line) == 1:
                    self._list(message)
            self._changed.notify_all()
        for message in beyond:
            self._lose(message, f"more than {MOST_WAITING} messages wait")

    @property
    def is_behind(self) -> bool:
        """Return whether many messages wait, or the last attempt failed and will be repeated."""
        return self._failing or len(self._waiting) > BACKLOG

    def waiting(self) -> list[Message]:
        """Return the waiting messages, the one that is being tried included."""
        with self._changed:
            return list(self._waiting.values())

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
        message = self._take(now_ns)
        if message is None:
            return False
        try:
            attempt = self.deliver(message)
        except Exception as error:  # noqa: BLE001  a bug of ours: the message stays, the others are tried
            _log.exception("otel-llm: a message to %s could not be sent", self.channel)
            attempt = Attempt("retry", f"{type(error).__name__}: {error}"[:200])
        if attempt.verdict == "retry" and now_ns - message.first_ns < GIVE_UP_S * 1e9:
            self.counts.retries += 1
            self._failing = True
            self._log_once(message, attempt.reason)
            wait_s = backoff_s(message.tries, LONGEST_BACKOFF_S)
            if attempt.after_s is not None:  # no sooner: a receiver that asks for 0 s is tried for a day
                wait_s = min(max(attempt.after_s, wait_s), LONGEST_BACKOFF_S)
            with self._changed:
                message.tries += 1
                message.next_ns = self.clock.now_ns() + round(wait_s * 1e9)
                self._list_next(message)
        else:
            self._failing = False
            with self._changed:
                known = id(message) in self._waiting
                if known:
                    self._remove(message)
                self._list_next(message)
            if attempt.verdict == "accepted":
                self.counts.sent += 1
            elif known:  # else it was given up meanwhile
                message.tries += 1
                self._lose(message, attempt.reason)
        self.completed()
        return True

    def next_ns(self) -> int | None:
        """Return when the next attempt is due; None if nothing waits."""
        with self._changed:
            lines = [line for ready in self._ready.values() for line in ready if line in self._lines]
            firsts_ns = [self._lines[line][0].next_ns for line in lines]
            return min([*firsts_ns, *(at_ns for at_ns, _ in self._later[:1])], default=None)

    def _take(self, now_ns: int) -> Message | None:
        """Return the message to try now; its line is not listed until then. Tenants take turns."""
        with self._changed:
            while self._later and self._later[0][0] <= now_ns:
                _, line = heappop(self._later)
                self._ready.setdefault(line[0], deque()).append(line)
            while self._ready:
                tenant = min(self._ready, key=lambda one: self._turns[one])
                line = self._ready[tenant].popleft()
                if not self._ready[tenant]:
                    del self._ready[tenant]
                first = self._lines[line][0] if line in self._lines else None  # None: its messages were given up
                if first is not None and first.next_ns > now_ns:  # those before it were given up
                    heappush(self._later, (first.next_ns, line))
                elif first is not None:
                    self._attempts += 1
                    self._turns[tenant] = self._attempts
                    return first
            return None

    def _list(self, message: Message) -> None:
        """List the line whose first message this is."""
        line = (message.tenant, message.about)
        if message.next_ns > self.clock.now_ns():
            heappush(self._later, (message.next_ns, line))
        else:
            self._ready.setdefault(message.tenant, deque()).append(line)

    def _list_next(self, message: Message) -> None:
        """List the line of a message that was tried."""
        line = self._lines.get((message.tenant, message.about))
        if line is not None:
            self._list(line[0])

    def _remove(self, message: Message) -> None:
        """Remove the first message of a line."""
        del self._waiting[id(message)]
        self._table.drop(id(message))
        line = (message.tenant, message.about)
        self._lines[line].remove(message)
        if not self._lines[line]:
            del self._lines[line]

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
