"""Child processes of the demo: a line of their output is awaited at the start, and they are always stopped."""

from __future__ import annotations

import atexit
import os
import queue
import re
import signal
import subprocess
import threading
from collections import deque
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Self

import click

from otel_llm.shared.clock import monotonic_s

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType


class Child:
    """A child process; its output is read continuously, and the last lines are kept for messages.

    It ends with this process at the latest, even if a signal arrives before the caller holds the object.
    """

    def __init__(self, name: str, command: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self.name = name
        self.log = log
        self.command = list(command)
        self.tail: deque[str] = deque(maxlen=20)
        self._lines: queue.Queue[str | None] = queue.Queue()
        with _signals_later():
            self.process = subprocess.Popen(  # noqa: S603  our own commands, no shell
                list(command),
                env=dict(env),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                text=True,
                start_new_session=True,
            )
            assert self.process.stdout is not None  # noqa: S101
            self._reader = threading.Thread(target=self._read, args=(self.process.stdout,), daemon=True)
            self._reader.start()
            atexit.register(self.stop)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _read(self, stream: IO[str]) -> None:
        with self.log.open("a", encoding="utf-8") as log, stream:
            for line in stream:
                log.write(line)
                self.tail.append(line.rstrip())
                self._lines.put(line)
        self._lines.put(None)

    def wait_for(self, pattern: str, timeout_s: float) -> re.Match[str]:
        """Return the first output that matches; raise a usage-style error with the child's last words otherwise."""
        limit = monotonic_s() + timeout_s
        while True:
            try:
                line = self._lines.get(timeout=max(0.01, limit - monotonic_s()))
            except queue.Empty:
                raise self.failure(f"printed nothing like {pattern!r} within {timeout_s:.0f} s") from None
            if line is None:
                raise self.failure("ended too soon")
            found = re.search(pattern, line)
            if found:
                return found

    def failure(self, what: str) -> click.ClickException:
        """Return an error with the child's name, the problem and its last lines."""
        words = "\n  ".join(self.tail) or "(no output)"
        return click.ClickException(f"the {self.name} {what}; its output:\n  {words}\nall of it: {self.log}")

    def stop(self, timeout_s: float = 20.0) -> int:
        """Stop it: ask, wait, kill; return its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            # Its own children too: they would live on.
            os.killpg(self.process.pid, signal.SIGKILL)
            status = self.process.wait()
        self._reader.join(timeout=5.0)
        atexit.unregister(self.stop)
        return status


@contextmanager
def _signals_later() -> Iterator[None]:
    """Delay SIGINT and SIGTERM until after the block. For the main thread."""
    came: list[int] = []
    handlers = {
        signum: signal.signal(signum, lambda signum, _frame: came.append(signum))
        for signum in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)
        for late in came:
            signal.raise_signal(late)
