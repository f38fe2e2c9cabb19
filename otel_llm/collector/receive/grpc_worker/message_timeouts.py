"""A timeout for the message of an RPC, which gRPC lacks: a thread cancels overdue RPCs."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Final

from otel_llm.shared.clock import monotonic_s
from otel_llm.shared.memory import HEAP_TRIMMER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import grpc

CROWDED_S: Final = 1.0
"""The timeout while other RPCs wait for a thread."""
_CHECK_S: Final = 0.25


@dataclass(slots=True)
class PendingMessage:
    """An RPC whose message has not arrived."""

    context: grpc.ServicerContext
    since_s: float
    timed_out: bool = False


class MessageTimeouts:
    """Cancels RPCs whose message takes longer than `message_s`, or CROWDED_S while `is_crowded`."""

    def __init__(self, message_s: float, is_crowded: Callable[[], bool]) -> None:
        self._message_s = message_s
        self._is_crowded = is_crowded
        self._waiting: dict[int, PendingMessage] = {}
        """By the id of the context, in order of arrival."""
        self._lock = Lock()
        self._stop = Event()
        self._thread = Thread(target=self._run, name="otlp-grpc-timeouts", daemon=True)

    def start(self) -> None:
        """Start checking."""
        self._thread.start()

    def stop(self) -> None:
        """Stop checking."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    @contextmanager
    def waiting(self, context: grpc.ServicerContext) -> Iterator[PendingMessage]:
        """Apply the timeout to an RPC within the block; the value says whether it timed out."""
        key, waiting = id(context), PendingMessage(context, monotonic_s())
        with self._lock:
            self._waiting[key] = waiting
        try:
            yield waiting
        finally:
            with self._lock:
                del self._waiting[key]

    def _run(self) -> None:
        while not self._stop.wait(_CHECK_S):
            HEAP_TRIMMER.trim_if_due()
            limit_s = min(CROWDED_S, self._message_s) if self._is_crowded() else self._message_s
            before = monotonic_s() - limit_s
            with self._lock:
                overdue = [one for one in self._waiting.values() if one.since_s < before]
            for one in overdue:
                one.timed_out = True
                one.context.cancel()
