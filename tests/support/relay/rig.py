"""A relay and its backends in one event loop, with a client: real sockets, no process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.instrumentation.recorded import Recorded
from support.patience import WAIT_S
from support.relay.fake_engine import EngineRequest, FakeEngine, Fault
from support.relay.readers import Reply, read

from otel_llm.actions.execute.executors import RELAY_DOES, load_enforced
from otel_llm.actions.sinks.console import Console
from otel_llm.config.settings_model import SettingsModel
from otel_llm.live.exposition import text_of
from otel_llm.relay.deciding.command import Command
from otel_llm.relay.service import Service
from otel_llm.relay.settings import Failover, Preempt, load_settings
from otel_llm.rules.decisions.files import read_back
from otel_llm.rules.files.slo_file import load_slo
from otel_llm.shared.web.address import Address

NO_RULES = "version: 1\ngroups: []\n"


@dataclass
class Rig:
    """A running relay. `reported`: what its console said; `decisions`: its records."""

    service: Service
    engines: Sequence[FakeEngine]
    session: aiohttp.ClientSession
    url: str
    web: str
    folder: Path
    exporter: InMemorySpanExporter
    reported: list[str] = field(default_factory=list)

    async def read(self, body: dict[str, Any]) -> Reply:
        """Read one reply through the relay."""
        return await asyncio.wait_for(read(self.session, self.url + "/v1", body), WAIT_S)

    async def direct(self, body: dict[str, Any], engine: int = 0) -> Reply:
        """Read one reply straight from a backend."""
        return await asyncio.wait_for(read(self.session, self.engines[engine].url + "/v1", body), WAIT_S)

    async def get(self, path: str) -> Any:
        """Ask the web port for JSON."""
        async with self.session.get(self.web + path) as response:
            return await response.json()

    async def metrics(self) -> dict[str, float]:
        """Return the samples of `/metrics` by their text, as of now: what the port shows may be a second old."""
        lines = text_of(self.service.families()).decode().splitlines()
        pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}

    async def preempt(self, instance: str, rule: str = "Overload") -> tuple[str, str]:
        """Have the relay pause a stream of a backend, its own choice; return the outcome and its detail."""
        owned = self.service.owned
        assert owned is not None
        completed: asyncio.Future[tuple[str, str]] = asyncio.get_running_loop().create_future()
        command = Command("act_1", "preempt", 0, rule, instance=instance)
        owned.preempt(command, lambda outcome, detail, _facts: completed.set_result((outcome, detail)))
        return await asyncio.wait_for(completed, WAIT_S)

    async def caught_up(self) -> None:
        """Wait until the relay has read all that its backends have sent of the streams in flight."""
        async with asyncio.timeout(WAIT_S):
            while not self._has_caught_up():
                await asyncio.sleep(0.005)

    def _has_caught_up(self) -> bool:
        assert self.service.owned is not None
        runs = [one.run for one in self.service.owned.sessions.values() if one.run is not None and not one.run.closed]
        sent = sum(asked.bytes_sent for asked in self.asked if not asked.ended.is_set())
        return not any(run.unread for run in runs) and sum(run.response.content.total_bytes for run in runs) == sent

    def decisions(self) -> list[dict[str, Any]]:
        """Return the records that are written so far."""
        return [json.loads(line) for line in read_back(self.folder / "decisions.jsonl")]

    @property
    def recorded(self) -> Recorded:
        """What was recorded; whole once the relay has stopped."""
        return Recorded(self.exporter)

    @property
    def asked(self) -> list[EngineRequest]:
        """The generation requests that backends got."""
        return [asked for engine in self.engines for asked in engine.streams]

    def fail_first(self, *faults: Fault) -> None:
        """Let the next generation requests fail so, whichever backend gets them."""
        waiting = list(faults)

        def fault_of(_asked: EngineRequest) -> Fault | None:
            return waiting.pop(0) if waiting else None

        for engine in self.engines:
            engine.fault_of = fault_of


async def at_rest(number: Callable[[], int]) -> int:
    """Wait until a number has not changed for a while; return it."""
    was, same = -1, 0
    async with asyncio.timeout(WAIT_S):
        while same < 10:
            await asyncio.sleep(0.02)
            now = number()
            same = same + 1 if now == was else 0
            was = now
    return was


Settings = TypeVar("Settings", bound=SettingsModel)


def changed(settings: Settings, **values: object) -> Settings:
    """Return settings with other values."""
    return settings.model_copy(update=values)


@asynccontextmanager
async def rig(
    folder: Path,
    *engines: FakeEngine,
    rules: str = NO_RULES,
    settings: str = "",
    slo: Path | None = None,
    preempt: Preempt | None = None,
    failover: Failover | None = None,
) -> AsyncIterator[Rig]:
    """Run a relay in front of engines; it has stopped when this returns. `preempt`, `failover` replace the settings.

    A probe has `WAIT_S`, unless `settings` say otherwise: the backends are in the same loop, and where that stands
    still for the second of the default they would all be unhealthy. Nor are requests hedged for being late, unless
    `settings` say when, or which share.
    """
    (folder / "rules.yaml").write_text(rules)
    (folder / "relay.yaml").write_text("version: 1\n" + settings)
    async with AsyncExitStack() as stack:
        for engine in engines:
            await stack.enter_async_context(engine)
        backends = [f"{name}={engine.url}" for name, engine in zip("abcdef", engines, strict=False)]
        found = load_settings(folder / "relay.yaml", backends)
        if "timeout: " not in settings:
            found = changed(found, health=changed(found.health, timeout_s=WAIT_S))
        if "hedge_" not in settings:
            found = changed(found, failover=changed(found.failover, hedge_share=0.0))
        if preempt is not None:
            found = changed(found, preempt=preempt)
        if failover is not None:
            found = changed(found, failover=failover)
        kinds = {name: engine.kind for name, engine in zip("abcdef", engines, strict=False)}
        kept = {name: changed(one, kind=kinds.get(name, one.kind)) for name, one in found.backends.items()}
        found = changed(found, backends=kept)
        exporter = InMemorySpanExporter()
        reported: list[str] = []
        service = Service(
            classes=load_slo(slo),
            rules=load_enforced([str(folder / "rules.yaml")], found, RELAY_DOES)[0],
            settings=found,
            decisions_path=folder / "decisions.jsonl",
            folder=folder,
            at=Address("127.0.0.1", 0),
            web_at=Address("127.0.0.1", 0),
            console=Console(echo=reported.append, verdicts="all"),
            load=lambda: (load_slo(slo), load_enforced([str(folder / "rules.yaml")], found, RELAY_DOES)[0]),
            exporter=exporter,
        )
        service.prepare()
        ports = [
            word
            for word in service.listening().replace(";", " ").split()
            if word.startswith(("http://127", "https://127"))
        ]
        running = asyncio.create_task(service.run())
        session = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True))
        )
        started = asyncio.create_task(service.started.wait())
        await asyncio.wait({started, running}, return_when=asyncio.FIRST_COMPLETED, timeout=WAIT_S)
        if running.done():
            await running
        try:
            yield Rig(service, engines, session, ports[0], ports[-1], folder, exporter, reported)
        finally:
            service.stop.set()
            await asyncio.wait_for(running, WAIT_S)
