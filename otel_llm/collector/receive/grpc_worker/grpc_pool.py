"""The threads of the gRPC receiver, shared fairly by caller: the next is for the caller that has the fewest."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock, local
from typing import TYPE_CHECKING, Any, Final

from otel_llm.collector.receive.grpc_worker.connection_limits import peer_host
from otel_llm.collector.receive.senders import FewestFirst
from otel_llm.shared.web.peers import peer_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

_RESERVED: Final = 8
"""One eighth of the threads, and of the pending calls, is reserved: a caller that has the rest gets none of it."""


class FairPool(ThreadPoolExecutor):
    """A thread pool for gRPC's calls, by the token or the peer of each; `pending` counts unfinished calls.

    Args:
        threads: calls that run at once.
        most: calls that may be pending; one caller may have seven eighths of them.
    """

    def __init__(self, threads: int, most: int, name: str) -> None:
        super().__init__(threads, thread_name_prefix=name)
        self.pending = 0
        self._most_of_one = most - most // _RESERVED
        self._pending_of: Counter[Hashable] = Counter()
        self._refusals = ThreadPoolExecutor(1, thread_name_prefix=f"{name}-busy")
        self._local = local()
        self._lock = Lock()
        self._calls: FewestFirst[tuple[Future[Any], Callable[[], Any]]] = FewestFirst(
            max(1, threads - threads // _RESERVED)
        )

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Queue a call."""
        future: Future[Any] = Future()
        caller = caller_of(args)
        with self._lock:
            too_many = self._pending_of[caller] >= self._most_of_one
            if not too_many:
                self.pending += 1
                self._pending_of[caller] += 1
                self._calls.put(caller, (future, lambda: fn(*args, **kwargs)))
        if too_many:
            return self._refusals.submit(self._refuse, fn, args, kwargs)
        super().submit(self._run)
        return future

    @property
    def refusing(self) -> bool:
        """Return whether the call in this thread must be refused: its caller has too many."""
        return getattr(self._local, "refusing", False)

    def _refuse(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._local.refusing = True
        return fn(*args, **kwargs)

    def _run(self) -> None:
        """Run the next call, then calls that waited because their caller had too many threads."""
        while True:
            with self._lock:
                found = self._calls.take()
            if found is None:
                return
            caller, (future, call) = found
            try:
                if future.set_running_or_notify_cancel():
                    _settle(future, call)
            finally:
                with self._lock:
                    self.pending -= 1
                    self._pending_of[caller] -= 1
                    if not self._pending_of[caller]:
                        del self._pending_of[caller]
                    self._calls.done(caller)
            del found, future, call


def _settle(future: Future[Any], call: Callable[[], Any]) -> None:
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001  handed to gRPC
        future.set_exception(error)
    else:
        future.set_result(result)


def caller_of(arguments: tuple[Any, ...]) -> Hashable:
    """Return the token or the peer of a call, from the arguments that gRPC submits; None where both are unknown.

    gRPC passes its event with the call: before the call has a thread, peer and metadata are nowhere else.
    """
    for one in arguments:
        peer, metadata = getattr(getattr(one, "call", None), "peer", None), getattr(one, "invocation_metadata", None)
        if peer is not None and metadata is not None:
            token = next((value for key, value in metadata if key == "authorization"), None)
            return token or peer_of(peer_host(peer().decode()))
    return None
