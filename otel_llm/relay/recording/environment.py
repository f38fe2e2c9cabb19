"""The shared parts of the relay's recordings: clock, rules, timers, and the guard against their failures."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from otel_llm.evaluate.own_streams.first_hand import FirstHand

log: Final = logging.getLogger(__name__)


class Cancellable(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Cancel it."""


class Later(Protocol):
    """Schedule a call in so many seconds."""

    def __call__(self, delay: float, callback: Callable[[], None], /) -> Cancellable:
        """Return a handle that cancels it."""


class Bugs:
    """A guard: a failure of ours inside of `with` is counted and the first is logged; the stream goes on."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> None:
        """Enter the guarded block."""

    def __exit__(
        self, kind: type[BaseException] | None, bug: BaseException | None, where: TracebackType | None
    ) -> bool:
        """Suppress an `Exception`, and nothing else."""
        if not isinstance(bug, Exception):
            return False
        if not self.count:
            log.error("otel-llm: rules no longer see a stream as it is", exc_info=bug)
        self.count += 1
        return True


@dataclass(frozen=True, slots=True)
class Environment:
    """The process environment of recordings.

    `clock_ns` reads the monotonic clock, ns; `offset_ns` added to it makes unix ns. `first_hand` follows the streams
    for the rules; `rearm` is called when something may fall due there earlier than before. `later` schedules a call in
    so many seconds, as `loop.call_later` does.
    """

    clock_ns: Callable[[], int]
    offset_ns: int
    first_hand: FirstHand
    rearm: Callable[[], None]
    later: Later
    bugs: Bugs = field(default_factory=Bugs)
