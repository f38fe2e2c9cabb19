"""Clients of a relay whose engines send a chunk of each stream on command."""

from __future__ import annotations

import asyncio
from typing import Any

from support.relay.readers import Reply, read
from support.relay.rig import Rig


class QueuedClients:
    """Clients that read; their requests may wait in the relay's queue."""

    def __init__(self, running: Rig) -> None:
        self.rig = running
        self.reading: list[asyncio.Task[Reply]] = []

    def send(self, slo: str, body: dict[str, Any]) -> None:
        """Send a request of a class, without waiting."""
        coming = read(self.rig.session, self.rig.url + "/v1", body, headers={"x-slo-class": slo})
        self.reading.append(asyncio.create_task(coming))

    async def waiting(self) -> int:
        """Return how many requests are in the queue."""
        return int((await self.rig.metrics())["otel_llm_relay_queue"])

    async def finish(self) -> list[Reply]:
        """Let all engines go on until every client has its reply; return these."""
        while not all(one.done() for one in self.reading):
            for engine in self.rig.engines:
                await engine.step(20)
            await asyncio.sleep(0.005)
        return [one.result() for one in self.reading]
