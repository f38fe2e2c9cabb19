"""The threads of the gRPC receiver: whoever has the fewest of them gets the next, and nobody gets all."""

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
"""One thread in so many, and of the calls that may wait, is for others than the one who has the rest."""


class FairPool(ThreadPoolExecutor):
    """A pool for gRPC's calls, by the peer and the token of each; `pending` counts those that are not finished.

    Args:
        threads: so many calls run at once.
        most: so many may be pending; the last eighth is for callers that have less than that pending.
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
        """Have a call run when it is its turn."""
        future: Future[Any] = Future()
        whose = caller_of(args)
        with self._lock:
            too_many = self._pending_of[whose] >= self._most_of_one
            if not too_many:
                self.pending += 1
                self._pending_of[whose] += 1
                self._calls.put(whose, (future, lambda: fn(*args, **kwargs)))
        if too_many:
            return self._refusals.submit(self._refuse, fn, args, kwargs)
        super().submit(self._run)
        return future

    @property
    def refusing(self) -> bool:
        """Tell whether the call that runs in this thread is one too many of its caller's, and is to be refused."""
        return getattr(self._local, "refusing", False)

    def _refuse(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._local.refusing = True
        return fn(*args, **kwargs)

    def _run(self) -> None:
        """Run what is next, and then what could not be run before that for its peer had too many threads."""
        while True:
            with self._lock:
                found = self._calls.take()
            if found is None:
                return
            whose, (future, call) = found
            try:
                if future.set_running_or_notify_cancel():
                    _settle(future, call)
            finally:
                with self._lock:
                    self.pending -= 1
                    self._pending_of[whose] -= 1
                    if not self._pending_of[whose]:
                        del self._pending_of[whose]
                    self._calls.done(whose)
            del found, future, call


def _settle(future: Future[Any], call: Callable[[], Any]) -> None:
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001  handed to gRPC
        future.set_exception(error)
    else:
        future.set_result(result)


def caller_of(arguments: tuple[Any, ...]) -> Hashable:
    """Return who makes a call, of what gRPC submits; one and the same for all where it cannot be told.

    gRPC hands over its own event with the call: its peer and metadata are nowhere else before a thread is taken.
    """
    for one in arguments:
        peer, metadata = getattr(getattr(one, "call", None), "peer", None), getattr(one, "invocation_metadata", None)
        if peer is not None and metadata is not None:
            token = next((value for key, value in metadata if key == "authorization"), None)
            return token or peer_of(peer_host(peer().decode()))
    return None
