"""Graceful stops of serving processes that run no exit handler of Python's, or are killed at the end of their grace.

uvicorn ends its process by the signal that stopped it. The master of gunicorn kills workers when its grace is over, a
moment before their own. A pool process of Celery ends by `os._exit`. Each of them is hooked when the host imports it,
and recorded data is sent before. The hooks stay, and do nothing while no recorder runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import signal
import sys
from typing import TYPE_CHECKING, Any, Final, Protocol

import wrapt

from otel_llm.export import host_log, threads
from otel_llm.export.clock import monotonic_s
from otel_llm.instrumentation.process.patches import Patches

if TYPE_CHECKING:
    from collections.abc import Callable

FORCED_S: Final = 0.5
"""The longest wait of an ending process for queued records after a second signal, which asks for haste."""
POLL_S: Final = 0.01
UVICORN: Final = "uvicorn.server"
CANCELLED_S: Final = 1.0
"""How long uvicorn's cancelled tasks may take to end before their streams are ended for them."""
BEFORE_KILL_S: Final = 1.0
"""How long before the end of gunicorn's grace open streams are ended; half of the grace if it is below 2 s."""

GUNICORN: Final = (
    ("gunicorn.workers.base", "Worker", "handle_exit", 0.0),
    ("gunicorn.workers.gthread", "ThreadWorker", "handle_exit", 0.0),
    ("gunicorn.workers.gasgi", "ASGIWorker", "_shutdown", 1.0),
)
"""Module, class and method that a worker calls when its grace begins, and by how many seconds it may be late."""


class Stoppable(Protocol):
    """The recorder of a process, as a graceful stop needs it; `runtime.Runtime` in an application."""

    @property
    def exit_s(self) -> float:
        """Return the longest wait of an ending process for queued records."""

    def complete(self, *, exiting: bool = False, within_s: float | None = None) -> None:
        """Send the recorded data, within `within_s` or `exit_s`; `exiting`: end the open streams too. Blocks."""

    def leave_in(self, seconds: float) -> None:
        """End in so many seconds the streams that are open then; takes no lock."""


class Stops:
    """The hooks of servers: of imported ones now, of others when the host imports them.

    `running` returns the running recorder, None if there is none. One object a process: hooks are not removed.
    """

    def __init__(self, running: Callable[[], Stoppable | None]) -> None:
        self._running = running
        self._when_imported(UVICORN, self._hook_uvicorn)
        for module, owner, method, late_s in GUNICORN:
            self._when_imported(module, functools.partial(self._hook_gunicorn, owner, method, late_s))
        self._when_imported("celery.signals", self._hook_celery)

    def _when_imported(self, name: str, hook: Callable[[Any], None]) -> None:
        def hooked(module: Any) -> None:
            try:
                hook(module)
            except Exception as moved:  # noqa: BLE001  an unknown version of a server serves as before
                host_log.warning("otel_llm does not know this %s: a stop may lose last segments: %s", name, moved)

        wrapt.register_post_import_hook(hooked, name)

    def _hook_uvicorn(self, module: Any) -> None:
        patches = Patches()
        patches.replace(module.Server, "shutdown", self._uvicorn_shutdown)
        patches.replace(module.Server, "handle_exit", self._uvicorn_exit)

    def _uvicorn_shutdown(self, original: Callable[..., Any]) -> Callable[..., Any]:
        async def shutdown(server: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return await original(server, *args, **kwargs)
            finally:
                if (running := self._running()) is not None:
                    with contextlib.suppress(Exception):
                        await _send_before_signal(running, server)

        return shutdown

    def _uvicorn_exit(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def handle_exit(server: Any, *args: Any, **kwargs: Any) -> Any:
            # In a worker of gunicorn the server's `callback_notify` is a method of that worker.
            self._grace_begins(getattr(server.config.callback_notify, "__self__", None))
            return original(server, *args, **kwargs)

        return handle_exit

    def _hook_gunicorn(self, owner: str, method: str, late_s: float, module: Any) -> None:
        worker_type = getattr(module, owner)
        Patches().replace(worker_type, method, functools.partial(self._gunicorn_exit, late_s))
        # A worker installs its handler and then loads the application, which may import us: install it once more.
        worker = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
        if isinstance(worker, worker_type):
            signal.signal(signal.SIGTERM, worker.handle_exit)
            signal.siginterrupt(signal.SIGTERM, False)  # as in the worker

    def _gunicorn_exit(self, late_s: float, original: Callable[..., Any]) -> Callable[..., Any]:
        def handle_exit(worker: Any, *args: Any, **kwargs: Any) -> Any:
            self._grace_begins(worker, late_s)
            return original(worker, *args, **kwargs)

        return handle_exit

    def _grace_begins(self, worker: Any, late_s: float = 0.0) -> None:
        """End the streams shortly before the grace of a gunicorn worker is over; None: there is no such worker.

        The grace began up to `late_s` ago.
        This runs in signal handlers: the thread that one interrupts may hold a lock, so it takes none.
        """
        if worker is not None and (running := self._running()) is not None:
            with contextlib.suppress(Exception):
                grace_s = max(float(worker.cfg.graceful_timeout) - late_s, 0.0)
                running.leave_in(grace_s - min(BEFORE_KILL_S, grace_s / 2))

    def _hook_celery(self, module: Any) -> None:
        for stop in (module.worker_process_shutdown, module.worker_shutdown):
            stop.connect(self._celery_stops, weak=False)

    def _celery_stops(self, *_: object, **__: object) -> None:
        if (running := self._running()) is not None:
            running.complete(exiting=True)


async def _send_before_signal(running: Stoppable, server: Any) -> None:
    hurry = bool(server.force_exit)  # a second signal: the grace was cut short
    if not hurry and (tasks := set(server.server_state.tasks)):  # the grace is over: they were cancelled, and end now
        await asyncio.wait(tasks, timeout=CANCELLED_S)
    # After a signal the process ends by it next. A server stopped by a program may leave other streams open.
    exiting = bool(getattr(server, "_captured_signals", ()))
    await completed(running, exiting=exiting, within_s=FORCED_S if hurry else None)


async def completed(running: Stoppable, *, exiting: bool = False, within_s: float | None = None) -> None:
    """Wait until the recorded data is sent, at most `within_s` or the recorder's `exit_s`.

    The event loop, asyncio's or trio's, runs on.
    """
    within_s = running.exit_s if within_s is None else min(within_s, running.exit_s)
    done: list[bool] = []

    def complete() -> None:
        running.complete(exiting=exiting, within_s=within_s)
        done.append(True)

    # A thread of our own: those of the loop's executor may all be busy for as long as the server stops.
    threads.start(complete)
    until_s = monotonic_s() + within_s
    while not done and monotonic_s() < until_s:
        await _pause(POLL_S)


async def _pause(seconds: float) -> None:
    trio = sys.modules.get("trio")
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        if trio is None:
            raise
        await trio.sleep(seconds)
    else:
        await asyncio.sleep(seconds)
