"""Threads and locks of the operating system, even if gevent or eventlet replaced those of Python.

Such a library runs all that Python calls a thread in turn on one event loop. A recorder thread there would stop the
whole application while it waits for an endpoint, and a lock that was made before the replacement would stop it for
good. The recorder therefore uses a copy of `_thread` that no library has patched: the import system makes a new module
object from the built-in one, and a patch changes attributes of the other object only.
"""

from __future__ import annotations

import contextlib
import time
from importlib.machinery import BuiltinImporter
from importlib.util import module_from_spec
from typing import TYPE_CHECKING, Any, Final

from otel_llm.export.clock import monotonic_s

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec

POLL_S: Final = 0.005
"""The interval of checks of `wait_until`: a flush is rare, and 5 ms are little beside the network."""


def _copy_of_thread() -> Any:
    spec: ModuleSpec | None = BuiltinImporter.find_spec("_thread")
    if spec is None:  # an interpreter without the built-in module; no library patches that one
        import _thread

        return _thread
    module = module_from_spec(spec)
    BuiltinImporter.exec_module(module)
    return module


_native: Final = _copy_of_thread()

lock: Final[Callable[[], Any]] = _native.RLock
"""Return a new lock; hold it for computing only, never while calling into the host or the network.

It is reentrant: the garbage collector may run while a thread holds it, and may collect a stream of the host, which then
ends in the same thread.
"""


class Wake:
    """A signal from any thread to the waiting one; signals before the wait count as one."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = _native.allocate_lock()  # another thread may release it
        self._lock.acquire()

    def set(self) -> None:
        """Wake the waiting thread, or let the next wait return at once."""
        with contextlib.suppress(RuntimeError):  # it is set already
            self._lock.release()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for a signal and take it; return whether there was one within `timeout_s` (None: without a limit)."""
        taken: bool = self._lock.acquire(timeout=-1 if timeout_s is None else max(timeout_s, 0.0))
        return taken


def start(run: Callable[[], None]) -> None:
    """Start a thread that does not keep the process alive; return without waiting for it to run."""
    _native.start_new_thread(run, ())


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Wait in the caller's thread until `condition()` is true; return whether it was within `timeout_s`.

    It sleeps by `time.sleep`, which gevent and eventlet replace: other greenlets go on meanwhile.
    """
    deadline_s = monotonic_s() + timeout_s
    while not condition():
        left_s = deadline_s - monotonic_s()
        if left_s <= 0:
            return condition()
        time.sleep(min(POLL_S, left_s))
    return True
