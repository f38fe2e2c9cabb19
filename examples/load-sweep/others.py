"""How much of the machine's processors others use meanwhile: what runs beside a measurement makes it slower."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

TICKS: Final = os.sysconf("SC_CLK_TCK")


class Others:
    """Watch the processors from now on; `sessions` are those of the programs that are measured (ids, as of setsid)."""

    def __init__(self, *sessions: int) -> None:
        self._sessions = sessions
        self._begin = self._now()

    def share(self) -> float:
        """Return the share of all processor time since the start that went to others, 0 to 1."""
        elapsed_s, busy_s, own_s = (now - then for now, then in zip(self._now(), self._begin, strict=True))
        return max(0.0, busy_s - own_s) / (elapsed_s * (os.cpu_count() or 1))

    def _now(self) -> tuple[float, float, float]:
        user, nice, system, _, _, irq, softirq = (int(one) for one in Path("/proc/stat").read_text().split()[1:8])
        own = sum(_ticks(process, self._sessions) for process in Path("/proc").glob("[0-9]*"))
        return time.monotonic(), (user + nice + system + irq + softirq) / TICKS, own / TICKS


def _ticks(process: Path, sessions: tuple[int, ...]) -> int:
    """Return the ticks of a process of one of the sessions, or of this process; else 0."""
    try:
        cells = (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:  # it ended meanwhile
        return 0
    session, user, system = int(cells[3]), int(cells[11]), int(cells[12])
    return user + system if session in sessions or process.name == str(os.getpid()) else 0
