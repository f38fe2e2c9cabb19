"""Give up RPCs whose message does not come: in a thread of its own, as gRPC has no time limit for that."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Final

from otel_llm.shared.clock import monotonic_s
from otel_llm.shared.memory import KEEPER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import grpc

CROWDED_S: Final = 1.0
"""What a message gets while others wait for a thread."""
_LOOK_S: Final = 0.25


@dataclass(slots=True)
class Waiting:
    """An RPC whose message has not come yet."""

    context: grpc.ServicerContext
    since_s: float
    given_up: bool = False


class MessagePatience:
    """Cancel RPCs whose message takes longer than `message_s`, or than a second while it is `crowded`."""

    def __init__(self, message_s: float, crowded: Callable[[], bool]) -> None:
        self._message_s = message_s
        self._crowded = crowded
        self._waiting: dict[int, Waiting] = {}
        """In the order in which they began; the keys only tell them apart."""
        self._lock = Lock()
        self._stop = Event()
        self._thread = Thread(target=self._run, name="otlp-grpc-patience", daemon=True)

    def start(self) -> None:
        """Look from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    @contextmanager
    def waiting(self, context: grpc.ServicerContext) -> Iterator[Waiting]:
        """Wait for the message of an RPC within the block; what it gives says whether that was given up."""
        key, waiting = id(context), Waiting(context, monotonic_s())
        with self._lock:
            self._waiting[key] = waiting
        try:
            yield waiting
        finally:
            with self._lock:
                del self._waiting[key]

    def _run(self) -> None:
        while not self._stop.wait(_LOOK_S):
            KEEPER.tend()
            limit_s = min(CROWDED_S, self._message_s) if self._crowded() else self._message_s
            before = monotonic_s() - limit_s
            with self._lock:
                overdue = [one for one in self._waiting.values() if one.since_s < before]
            for one in overdue:
                one.given_up = True
                one.context.cancel()
