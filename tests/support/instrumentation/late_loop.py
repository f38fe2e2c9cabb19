"""Time-outs of an event loop that come when a test wants them, and not when the machine is slow."""

from __future__ import annotations

import asyncio

HOUR_S = 3600.0


def an_hour_passes() -> None:
    """Let the running loop's clock go on by an hour as soon as its task waits: whatever waits for less is late then."""
    loop = asyncio.get_running_loop()
    now_s = loop.time
    loop.call_soon(setattr, loop, "time", lambda: now_s() + HOUR_S)
