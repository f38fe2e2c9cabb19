"""The same load on any port, and what its clients and the loaded process say of it."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from relay_load import engine

if TYPE_CHECKING:
    from collections import Counter

Figures = dict[str, float]
SHARES = (50, 99)
SETTLING_S = 0.5
"""What a proxy does behind the last chunk (it records, it logs) is part of its cost."""


@dataclass(frozen=True, slots=True)
class Load:
    """So many streams at once, each followed by others, of so many tokens at a pace in tokens/s; 0: as they are taken.

    At a pace the first streams begin one after another over the time that one lasts: as many end as begin from then on.
    """

    streams: int
    tokens: int
    pace: float
    replies: int = 1
    within_s: float | None = None
    """The time over which the first streams begin; None: as long as one lasts."""

    @property
    def lasts_s(self) -> float:
        """Return how long a stream at a pace lasts, in s."""
        return self.tokens / self.pace if self.pace else 0.0

    @property
    def limit_s(self) -> float:
        """Return how long all of it may take: 100 chunks a second are too few for any proxy."""
        return 30.0 + (self.replies + 1) * self.lasts_s + self.streams * self.replies * self.tokens / 100


def members(session: int | None) -> list[Path]:
    """Return the folders in /proc of a process and of those that it started; none without one."""
    found = []
    for entry in Path("/proc").iterdir() if session is not None else ():
        with suppress(OSError):  # it has ended
            if entry.name.isdigit() and int((entry / "stat").read_text().rpartition(")")[2].split()[3]) == session:
                found.append(entry)
    return found


def cpu_s(session: int | None) -> float:
    """Return the CPU time of a session's processes, in s."""
    total_ns = 0
    for entry in members(session):
        with suppress(OSError):
            total_ns += time.clock_gettime_ns(~int(entry.name) << 3 | 2)  # CPUCLOCK_SCHED of that process
    return total_ns / 1e9


def memory_mib(session: int | None) -> float:
    """Return what a session's processes hold in memory, in MiB; what they share counts once for each."""
    pages = 0
    for entry in members(session):
        with suppress(OSError):
            pages += int((entry / "statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


async def put(port: int, load: Load) -> list[engine.Reply]:
    """Put a load on a port and return every reply; what takes longer than the limit is cut."""
    prompt = f"a prompt of some words, to be answered at {load.pace} tokens a second"
    asked, replies = engine.chat(load.tokens, prompt), list[engine.Reply]()

    async def one(number: int) -> None:
        begins_s = load.lasts_s if load.within_s is None else load.within_s
        await asyncio.sleep(number / load.streams * begins_s)
        for _ in range(load.replies):
            replies.append(await engine.read(port, asked, load.tokens))

    tasks = [asyncio.create_task(one(number)) for number in range(load.streams)]
    await asyncio.wait(tasks, timeout=load.limit_s)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return replies


async def measure(port: int, session: int | None, load: Load, troubles: Counter[str]) -> Figures:
    """Put a load on a port and return its figures; times in us. What kept replies from being whole is counted.

    `first`: from a request's writing to the reading of its first token; `token`: from the backend's writing of a token
    to the client's reading, of all but the first. CPU is that of the session's processes, settling included.
    """
    before_s, begun_s = cpu_s(session), time.monotonic()
    replies = await put(port, load)
    took_s, busy_s = time.monotonic() - begun_s, cpu_s(session) - before_s
    await asyncio.sleep(SETTLING_S)
    spent_s = cpu_s(session) - before_s
    troubles.update(reply.trouble or "tokens are missing" for reply in replies if not reply.whole)
    chunks = sum(len(reply.read_ns) for reply in replies)
    found: Figures = {
        "streams": load.streams * load.replies,
        "whole": sum(reply.whole for reply in replies),
        "chunks_a_second": chunks / took_s,
        "busy": busy_s / took_s,
        "cpu_us_a_chunk": spent_s / chunks * 1e6 if chunks else float("nan"),
        "memory_mib": memory_mib(session),
        "chunks_a_cpu_second": chunks / spent_s if spent_s else float("nan"),
    }
    first = [(reply.read_ns[0] - reply.begun_ns) / 1e3 for reply in replies if reply.read_ns]
    later = [np.subtract(reply.read_ns[1:], reply.sent_ns[1:]) / 1e3 for reply in replies if len(reply.read_ns) > 1]
    for name, values in (("first", np.array(first)), ("token", np.concatenate(later) if later else np.array([]))):
        for share in SHARES:
            found[f"{name}_p{share}_us"] = float(np.percentile(values, share)) if values.size else float("nan")
    return found


def typical(many: list[Figures]) -> Figures:
    """Return the median of each figure over repetitions; streams, and those that were whole, are added up."""
    return {
        key: float((np.sum if key in ("streams", "whole") else np.median)([one[key] for one in many]))
        for key in many[0]
    }
