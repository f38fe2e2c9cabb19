"""Keep a process of many threads to one core: where they take turns anyway, waking each other across cores is dear.

Python's threads wait for one interpreter. On several cores each turn wakes another core from its rest, which costs more
than what is then done; on one they simply follow one another. Measured on the gRPC door: a third less CPU for large
exports, half as much again of small ones in a second.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from random import SystemRandom
from typing import Final

MOVE_S: Final = 10.0
"""After so long another core is chosen: one that others keep busy was a bad choice, but not for long."""
_TASKS: Final = Path("/proc/self/task")
_CAN: Final = hasattr(os, "sched_setaffinity")


class OneCore:
    """Keep the process to one of the cores that it may use; where the system has no such thing, do nothing."""

    def __init__(self) -> None:
        self._cores = sorted(os.sched_getaffinity(0)) if _CAN else []
        self._random = SystemRandom()  # processes that begin alike must not choose alike

    def move(self) -> None:
        """Choose a core anew; threads that begin later begin on that of who begins them."""
        if len(self._cores) < 2:
            return
        core = self._random.choice(self._cores)
        for task in _tasks():
            with suppress(OSError):  # it has ended, or the core is not ours any more
                os.sched_setaffinity(task, {core})


def _tasks() -> list[int]:
    """Return the threads of this process; only this one where that cannot be told."""
    try:
        return [int(task.name) for task in _TASKS.iterdir()]
    except OSError:
        return [0]
