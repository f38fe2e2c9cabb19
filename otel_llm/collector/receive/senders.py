"""Who sent an export, how much each sender may have waiting, and whose export is next.

A sender is whoever a token belongs to, else a peer address. What an export costs is charged to its sender; where
several senders wait, the one that has used the most recently waits. A sender alone is never slowed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from heapq import heappop, heappush
from queue import Empty
from threading import Lock
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar

from otel_llm.shared.web.peers import peer_of

if TYPE_CHECKING:
    from collections.abc import Hashable


T = TypeVar("T")
Accept: TypeAlias = Callable[[bytes, int], bytes]
"""Takes an `ExportTraceServiceRequest` and the number of its sender; returns the response, or raises a refusal."""

UNKNOWN: Final = 0
"""The sender of exports that nobody is charged for."""
FORGIVEN_SHARE: Final = 0.1
"""Of a core: what a sender has used counts less by so much every second, and is forgotten at 0."""
MOST_USED_S: Final = 10.0
"""No sender waits for more than this: it is served again at the latest when another has used as much."""
ALIKE_S: Final = 0.05
"""Senders whose use differs by less are served in order of arrival."""
_RESERVED: Final = 8
"""One part in so many of the room is for senders that have less than that part."""
_SWEEP: Final = 64
_MOST_A_RECORD_S: Final = 0.000_2
_TOKENS_A_RECORD: Final = 1_000
"""At most so much CPU time is charged for the evaluation of a span or of so many tokens."""


def charged_s(cpu_s: float, spans: int, tokens: int) -> float:
    """Return what is charged for an evaluation that took `cpu_s`: no more than is usual for so many spans and tokens.

    Time passes in it for the streams of all senders.
    """
    return min(cpu_s, (1 + spans + tokens / _TOKENS_A_RECORD) * _MOST_A_RECORD_S)


def sender_of(host: str, token: bytes | None = None) -> int:
    """Return the number of a sender, from 1 on: of its token where it brought one, else of its address."""
    name = token or peer_of(host).encode("utf-8", "replace")
    return int.from_bytes(blake2b(name, digest_size=8).digest(), "little") or 1


@dataclass(slots=True)
class _Sender(Generic[T]):
    forgiven_at_s: float = 0.0
    """When what it used will have been forgiven: the later, the more it has used."""
    held: bool = False
    listed: bool = False
    """Whether it stands in one of the heaps."""
    waiting: deque[tuple[int, T]] = field(default_factory=deque)


class FairQueue(Generic[T]):
    """What waits, by sender: each sender's own in order, the senders by what they have used. One thread at a time.

    Args:
        now_s: a monotonic clock.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._senders: dict[int, _Sender[T]] = {}
        self._light: list[tuple[int, int]] = []
        """A heap of the senders that have something waiting and have used little: the first arrival, the sender."""
        self._heavy: list[tuple[float, int]] = []
        """A heap of the others: when they are forgiven, the sender. An entry may be too early, never too late."""
        self._arrived = 0
        self._size = 0
        self._sweep_at = _SWEEP

    def __len__(self) -> int:
        return self._size

    @property
    def senders(self) -> int:
        """Return how many senders are remembered."""
        return len(self._senders)

    def put(self, sender: int, item: T) -> None:
        """Add what came, behind all that its sender sent before."""
        self._arrived += 1
        self._size += 1
        one = self._sender(sender)
        one.waiting.append((self._arrived, item))
        self._list(sender, one)

    def put_back(self, sender: int, item: T) -> None:
        """Add what was taken and is not done: before all else of its sender, which is held no longer."""
        one = self._sender(sender)
        self._size += 1
        one.waiting.appendleft((0, item))
        self.release(sender)

    def hold(self, sender: int) -> None:
        """Give out nothing of a sender until `put_back` or `release`: what it sent last is still under way."""
        self._sender(sender).held = True

    def release(self, sender: int) -> None:
        """Give out again what a sender has waiting."""
        one = self._sender(sender)
        one.held = False
        self._list(sender, one)

    def charge(self, sender: int, cost_s: float) -> None:
        """Charge CPU time to a sender."""
        one, now_s = self._sender(sender), self._now_s()
        used_until_s = max(now_s, one.forgiven_at_s) + cost_s / FORGIVEN_SHARE
        one.forgiven_at_s = min(used_until_s, now_s + MOST_USED_S / FORGIVEN_SHARE)

    def is_heavy(self, sender: int) -> bool:
        """Tell whether a sender has used much, or something large of it is under way, and there are others."""
        one = self._senders.get(sender)
        if one is None or len(self._senders) < 2:
            return False
        return one.held or one.forgiven_at_s > self._now_s() + ALIKE_S / FORGIVEN_SHARE

    def take(self) -> T:
        """Return the next; raises `queue.Empty` where there is none, or what waits is held."""
        light_s = self._now_s() + ALIKE_S / FORGIVEN_SHARE
        while self._heavy and self._heavy[0][0] <= light_s:
            _, sender = heappop(self._heavy)
            one = self._senders[sender]
            one.listed = False
            self._list(sender, one)
        while self._light:
            _, sender = heappop(self._light)
            one = self._senders[sender]
            if one.held:
                one.listed = False
            elif one.forgiven_at_s <= light_s:
                return self._taken(sender, one)
            else:
                heappush(self._heavy, (one.forgiven_at_s, sender))
        while self._heavy:
            listed_s, sender = heappop(self._heavy)
            one = self._senders[sender]
            if one.held:
                one.listed = False
            elif listed_s < one.forgiven_at_s:
                heappush(self._heavy, (one.forgiven_at_s, sender))
            else:
                return self._taken(sender, one)
        raise Empty

    def first(self) -> list[tuple[int, T]]:
        """Return each sender that has something waiting, and its next item."""
        return [(sender, one.waiting[0][1]) for sender, one in self._senders.items() if one.waiting]

    def _taken(self, sender: int, one: _Sender[T]) -> T:
        self._size -= 1
        _, item = one.waiting.popleft()
        one.listed = False
        self._list(sender, one)
        return item

    def _list(self, sender: int, one: _Sender[T]) -> None:
        """Enter a sender that has something to give out; `take` sorts out who has used much."""
        if one.waiting and not one.listed and not one.held:
            one.listed = True
            heappush(self._light, (one.waiting[0][0], sender))

    def _sender(self, sender: int) -> _Sender[T]:
        one = self._senders.get(sender)
        if one is None:
            if len(self._senders) >= self._sweep_at:
                self._forget()
            one = self._senders[sender] = _Sender()
        return one

    def _forget(self) -> None:
        """Forget who is idle and owes nothing; look again when as many have come as are left."""
        now_s = self._now_s()
        idle = [
            name
            for name, one in self._senders.items()
            if not (one.waiting or one.held or one.listed or one.forgiven_at_s > now_s)
        ]
        for name in idle:
            del self._senders[name]
        self._sweep_at = 2 * len(self._senders) + _SWEEP


class Room:
    """Count what waits; from any thread.

    The last eighth of the room is for senders that have less than an eighth of it waiting: one that fills the rest
    keeps nobody else out.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._of: dict[int, list[int]] = {}
        self._lock = Lock()
        self.count = 0
        self.bytes = 0

    def take(self, sender: int, size: int) -> bool:
        """Count an export that waits from now on; return False where there is no room for it."""
        with self._lock:
            own = self._of.get(sender, [0, 0])
            for at, (held, most) in enumerate(((self.count, self._most), (self.bytes, self._most_bytes))):
                reserved = most // _RESERVED
                if held >= most or (reserved and held >= most - reserved and own[at] >= reserved):
                    return False
            self._of[sender] = [own[0] + 1, own[1] + size]
            self.count += 1
            self.bytes += size
            return True

    def leave(self, sender: int, size: int) -> None:
        """Count an export that waits no longer."""
        with self._lock:
            own = self._of[sender]
            own[0] -= 1
            own[1] -= size
            if not own[0]:
                del self._of[sender]
            self.count -= 1
            self.bytes -= size

    def bytes_of(self, sender: int) -> int:
        """Return how many bytes of a sender wait."""
        with self._lock:
            return self._of.get(sender, (0, 0))[1]


class Turns:
    """A lock that goes to the one with the lowest rank of those that wait for it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._taken = False
        self._waiting: list[tuple[int, int, Lock]] = []
        self._came = 0

    def take(self, rank: Callable[[], int]) -> None:
        """Wait for the turn; `rank` is asked once, when one has to wait."""
        with self._lock:
            if not self._taken:
                self._taken = True
                return
            turn = Lock()
            turn.acquire()
            self._came += 1
            self._waiting.append((rank(), self._came, turn))
        turn.acquire()

    def give(self) -> None:
        """Let the next have it."""
        with self._lock:
            if not self._waiting:
                self._taken = False
                return
            lowest = min(self._waiting)
            self._waiting.remove(lowest)
        lowest[2].release()


class FewestFirst(Generic[T]):
    """Work that waits for threads, by whom it is for: those who have the fewest threads first. Not thread-safe.

    Args:
        most: threads for one of them, so that some are left for others.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: dict[Hashable, deque[T]] = {}
        self._in_hand: dict[Hashable, int] = {}

    def put(self, whose: Hashable, item: T) -> None:
        """Add work."""
        self._waiting.setdefault(whose, deque()).append(item)

    def take(self) -> tuple[Hashable, T] | None:
        """Return the next and whose it is; None where there is none, or who waits has all that one may have."""
        free = [whose for whose in self._waiting if self._in_hand.get(whose, 0) < self._most]
        if not free:
            return None
        whose = min(free, key=lambda one: self._in_hand.get(one, 0))
        queue = self._waiting[whose]
        item = queue.popleft()
        if not queue:
            del self._waiting[whose]
        self._in_hand[whose] = self._in_hand.get(whose, 0) + 1
        return whose, item

    def done(self, whose: Hashable) -> None:
        """Count a thread that is free again."""
        self._in_hand[whose] -= 1
        if not self._in_hand[whose]:
            del self._in_hand[whose]
