"""Fair scheduling of senders: who sent an export, how many exports of a sender may wait, whose is next.

A sender is a token, or a peer address if there is none. The CPU time of an export is charged to its sender. If
several senders wait, the one that has recently used the least is next. A sender alone is never slowed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from heapq import heappop, heappush
from queue import Empty
from threading import Lock
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeAlias, TypeVar

from otel_llm.core.fair_shares import has_room
from otel_llm.shared.web.peers import peer_of

if TYPE_CHECKING:
    from collections.abc import Hashable

    from otel_llm.shared.web.tokens import Bearer

T = TypeVar("T")


class Sender(NamedTuple):
    """The sender of an export: a number for fair scheduling, and the tenant of its token; None without tokens."""

    number: int
    tenant: str | None = None


Accept: TypeAlias = Callable[[bytes, Sender], bytes]
"""Takes an `ExportTraceServiceRequest` and its sender; returns the response, or raises a refusal."""

UNKNOWN: Final = Sender(0)
"""The sender of exports without one; its use is not charged to another."""
FORGIVEN_SHARE: Final = 0.1
"""The use of a sender decays by this share of a core: by 0.1 s of CPU time each second, down to 0."""
MOST_USED_S: Final = 10.0
"""The use of a sender is capped here: it is next at the latest when another sender has used as much."""
ALIKE_S: Final = 0.05
"""Senders whose use differs by less are served in order of arrival."""
_SWEEP: Final = 64
_MOST_A_RECORD_S: Final = 0.000_2
_TOKENS_A_RECORD: Final = 1_000
"""The most CPU time that is charged for the evaluation of a span, or of this many tokens."""


def charged_s(cpu_s: float, spans: int, tokens: int) -> float:
    """Return the charge for an evaluation of `cpu_s`, capped by the number of its spans and tokens.

    The cap exempts a sender from timers of other senders' streams, which run in the evaluation of its export.
    """
    return min(cpu_s, (1 + spans + tokens / _TOKENS_A_RECORD) * _MOST_A_RECORD_S)


def sender_of(host: str, bearer: Bearer | None = None) -> Sender:
    """Return a sender; its number, at least 1, is a hash of its token, or of its address if it has none."""
    name = peer_of(host).encode("utf-8", "replace") if bearer is None else bearer.digest
    number = int.from_bytes(blake2b(name, digest_size=8).digest(), "little") or 1
    return Sender(number, None if bearer is None else bearer.tenant)


@dataclass(slots=True)
class _Sender(Generic[T]):
    forgiven_at_s: float = 0.0
    """When its use will have decayed to 0: the later, the more it has used."""
    held: bool = False
    listed: bool = False
    """Whether it stands in one of the heaps."""
    waiting: deque[tuple[int, T]] = field(default_factory=deque)


class FairQueue(Generic[T]):
    """A queue that serves senders by their use, and the items of one sender in order. Not thread-safe.

    Args:
        now_s: a monotonic clock.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._senders: dict[int, _Sender[T]] = {}
        self._light: list[tuple[int, int]] = []
        """A heap of waiting senders that have used little, by first arrival."""
        self._heavy: list[tuple[float, int]] = []
        """A heap of the others, by the time at which their use has decayed. An entry may be early, never late."""
        self._arrived = 0
        self._size = 0
        self._sweep_at = _SWEEP

    def __len__(self) -> int:
        return self._size

    @property
    def senders(self) -> int:
        """Return how many senders are known."""
        return len(self._senders)

    def put(self, sender: int, item: T) -> None:
        """Add an item, behind those of its sender."""
        self._arrived += 1
        self._size += 1
        one = self._sender(sender)
        one.waiting.append((self._arrived, item))
        self._list(sender, one)

    def put_back(self, sender: int, item: T) -> None:
        """Return an unfinished item before those of its sender, and release the sender."""
        one = self._sender(sender)
        self._size += 1
        one.waiting.appendleft((0, item))
        self.release(sender)

    def hold(self, sender: int) -> None:
        """Keep back the items of a sender until `put_back` or `release`."""
        self._sender(sender).held = True

    def release(self, sender: int) -> None:
        """End the hold of a sender."""
        one = self._sender(sender)
        one.held = False
        self._list(sender, one)

    def charge(self, sender: int, cost_s: float) -> None:
        """Charge CPU time to a sender."""
        one, now_s = self._sender(sender), self._now_s()
        used_until_s = max(now_s, one.forgiven_at_s) + cost_s / FORGIVEN_SHARE
        one.forgiven_at_s = min(used_until_s, now_s + MOST_USED_S / FORGIVEN_SHARE)

    def is_heavy(self, sender: int) -> bool:
        """Return whether a sender has used much, or is held for a large item, while there are others."""
        one = self._senders.get(sender)
        if one is None or len(self._senders) < 2:
            return False
        return one.held or one.forgiven_at_s > self._now_s() + ALIKE_S / FORGIVEN_SHARE

    def take(self) -> T:
        """Return the next item.

        Raises:
            queue.Empty: none waits, or all are held.
        """
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
        """Return each sender that has an item waiting, with its oldest item."""
        return [(sender, one.waiting[0][1]) for sender, one in self._senders.items() if one.waiting]

    def waiting(self) -> list[T]:
        """Return all items that wait, held ones too, in no order."""
        return [item for one in self._senders.values() for _, item in one.waiting]

    def _taken(self, sender: int, one: _Sender[T]) -> T:
        self._size -= 1
        _, item = one.waiting.popleft()
        one.listed = False
        self._list(sender, one)
        return item

    def _list(self, sender: int, one: _Sender[T]) -> None:
        """Add a sender to the heap if it has items to serve; `take` moves heavy senders to the other heap."""
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
        """Forget idle senders without use; the next sweep is when the number of senders has doubled."""
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
    """The room for waiting exports and their bytes, shared by senders (`has_room`); for use from any thread."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._of: dict[int, list[int]] = {}
        self._lock = Lock()
        self.count = 0
        self.bytes = 0

    def take(self, sender: int, size: int) -> bool:
        """Take room for an export; return False if there is none."""
        with self._lock:
            own = self._of.get(sender, [0, 0])
            if not has_room(own[0], self.count, self._most) or not has_room(own[1], self.bytes, self._most_bytes):
                return False
            self._of[sender] = [own[0] + 1, own[1] + size]
            self.count += 1
            self.bytes += size
            return True

    def leave(self, sender: int, size: int) -> None:
        """Give back the room of an export."""
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


class RankedLock:
    """A lock that goes to the waiter with the lowest rank."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._taken = False
        self._waiting: list[tuple[int, int, Lock]] = []
        self._arrivals = 0

    def acquire(self, rank: Callable[[], int]) -> None:
        """Acquire the lock; `rank` is called once, and only to wait."""
        with self._lock:
            if not self._taken:
                self._taken = True
                return
            turn = Lock()
            turn.acquire()
            self._arrivals += 1
            self._waiting.append((rank(), self._arrivals, turn))
        turn.acquire()

    def release(self) -> None:
        """Release the lock."""
        with self._lock:
            if not self._waiting:
                self._taken = False
                return
            lowest = min(self._waiting)
            self._waiting.remove(lowest)
        lowest[2].release()


class FewestFirst(Generic[T]):
    """A queue of work by owner, which serves the owner that has the fewest threads. Not thread-safe.

    Args:
        most: threads of one owner, so that some are left for others.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: dict[Hashable, deque[T]] = {}
        self._in_hand: dict[Hashable, int] = {}

    def put(self, owner: Hashable, item: T) -> None:
        """Add work."""
        self._waiting.setdefault(owner, deque()).append(item)

    def take(self) -> tuple[Hashable, T] | None:
        """Return the next owner and its work; None if none waits, or its owner has the most threads already."""
        free = [owner for owner in self._waiting if self._in_hand.get(owner, 0) < self._most]
        if not free:
            return None
        owner = min(free, key=lambda one: self._in_hand.get(one, 0))
        queue = self._waiting[owner]
        item = queue.popleft()
        if not queue:
            del self._waiting[owner]
        self._in_hand[owner] = self._in_hand.get(owner, 0) + 1
        return owner, item

    def done(self, owner: Hashable) -> None:
        """Count a thread of an owner as free."""
        self._in_hand[owner] -= 1
        if not self._in_hand[owner]:
            del self._in_hand[owner]
