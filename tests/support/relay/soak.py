"""A relay process between engines that fail at random, clients that vanish or read slowly, and a sender of actions."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import aiohttp
from aiohttp import web
from support.relay.counted_tasks import TASKS_FILE
from support.relay.fake_engine import EngineRequest, FakeEngine, Fault, FaultKind
from support.relay.fake_model import FakeModel, Json
from support.relay.process import Relay, relay
from support.relay.readers import Reply, read
from support.relay.signed_actions import SECRET, event, signed, write_secret
from support.relay.soaked import Receiver, Sample, Soaked, account, judged

PAGE = os.sysconf("SC_PAGE_SIZE")
RULES = """\
version: 1
groups:
- name: g
  scope: stream
  rules:
  - rule: Stalled
    when: 'tokens_read > 0 && gap_seconds > 0.2'
    actions:
    - migrate: {to: least_load, only_if: 'exact_resume'}
      mode: enforce
      ttl: 5s
"""
SETTINGS = """\
version: 1
eject: {for: 0.5s}
failover: {first_byte: 1s}
preempt: {resume_runway: 1s, calm: 0.3s, max_paused: 6}
drain: {migrate: true}
actions: {secret_file: relay.secret}
"""
QUIET_S: Final = 60.0
"""How long the relay may take to come to rest."""
KEPT: Final = 20
"""Files and tasks that may be left at rest beside those of the start: probes keep some connections alive."""
TESTS: Final = Path(__file__).parents[2]
_BEFORE: Final[tuple[FaultKind, ...]] = (
    "refuse",
    "status",
    "status",
    "status",
    "reset",
    "empty",
    "lying_length",
    "html",
    "redirect",
)
_HELD: Final[tuple[FaultKind, ...]] = ("silent", "slow_prefill")
_WITHIN: Final[tuple[FaultKind, ...]] = (
    "reset",
    "end",
    "abort",
    "error",
    "malformed",
    "long_line",
    "bad_framing",
    "stall",
    "stall",
    "stall",
)


class _LeftError(Exception):
    """The client leaves."""


class Soak:
    """One run."""

    def __init__(
        self,
        engines: list[FakeEngine],
        running: Relay,
        chance: random.Random,
        found: Soaked,
        faults: float,
        tasks_file: Path,
    ) -> None:
        self.engines = engines
        self.running = running
        self.chance = chance
        self.found = found
        self.faults = faults
        self._tasks_file = tasks_file
        sent = aiohttp.TraceConfig()
        sent.on_request_chunk_sent.append(_note_sent)
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True), trace_configs=[sent]
        )
        self.over = False
        self._all_dead = False
        self._number = 0
        self._relay = ""
        """What the relay calls itself, once it has said so."""
        self._begun_s = time.monotonic()

    # Faults.

    def fault_of(self, asked: EngineRequest) -> Fault | None:
        """Choose what goes wrong with a request."""
        chance = self.chance
        if self._all_dead:
            return self._noted(Fault("refuse" if chance.random() < 0.5 else "status", status=503))
        if chance.random() >= self.faults:
            return None
        kind = chance.choice((*_BEFORE, *_HELD, *_WITHIN, *_WITHIN))
        fault = Fault(kind, after=chance.randint(1, 40) if kind in _WITHIN else 0)
        fault.status = chance.choice((429, 500, 503))
        if kind in (*_HELD, "stall", "bad_framing"):
            asyncio.get_running_loop().call_later(chance.uniform(0.1, 2.0), fault.released.set)
        return self._noted(fault)

    def _noted(self, fault: Fault) -> Fault:
        self.found.faults[fault.kind] += 1
        return fault

    async def trouble(self, seconds: float) -> None:
        """Restart a backend, make one unhealthy, or let all be dead for a while, again and again."""
        every_s = min(6.0, seconds / 5)
        while True:
            for step in (self._restart, self._sicken, self._kill_all):
                await asyncio.sleep(every_s)
                await step(self.chance.choice(self.engines), every_s / 4)

    async def _restart(self, engine: FakeEngine, for_s: float) -> None:
        self.found.faults["restart"] += 1
        port = engine.port
        await engine.stop()
        await asyncio.sleep(for_s)
        await engine.start(port)

    async def _sicken(self, engine: FakeEngine, for_s: float) -> None:
        self.found.faults["unhealthy"] += 1
        engine.healthy = False
        await asyncio.sleep(for_s)
        engine.healthy = True

    async def _kill_all(self, _engine: FakeEngine, for_s: float) -> None:
        self.found.faults["all dead"] += 1
        self._all_dead = True
        await asyncio.sleep(for_s)
        self._all_dead = False

    # Actions.

    async def commands(self) -> None:
        """Ask for an action at random, again and again: of streams in flight, of some that are gone, of backends.

        It ends behind an answer once `over` is set: an action that was sent is always counted here.
        """
        while not self.over:
            await asyncio.sleep(self.chance.uniform(0.0, 0.1))
            with suppress(aiohttp.ClientError):
                await self._command()

    async def _command(self) -> None:
        chance = self.chance
        verb = chance.choices(("preempt", "migrate", "abort", "drain"), (0.7, 0.2, 0.02, 0.08))[0]
        instance = chance.choice(self.engines).url.removeprefix("http://")
        span = None
        if verb in ("migrate", "abort"):
            async with self.session.get(self.running.web + "/v1/streams") as response:
                shown = await response.json()
            rows = [*shown["streams"], *shown["recent"][-3:]]
            if not rows:
                return
            row = chance.choice(rows)
            span = row["trace_id"], row["span_id"]
        self._number += 1
        body = event(verb, self._number, span=span, instance=instance, arguments={"to": "least_load"})
        body["data"]["relay"] = self._relay
        data = json.dumps(body).encode()
        forged = chance.random() < 0.05
        headers = signed(data, body["id"], secret=bytes(32) if forged else SECRET)
        times = 2 if chance.random() < 0.1 else 1
        for _ in range(times):
            async with self.session.post(self.running.web + "/v1/actions", data=data, headers=headers) as response:
                answer = await response.json()
                self._relay = answer.get("relay", self._relay)
                result = f"{response.status}" if response.status != 200 else f"{answer['result']}"
            self.found.actions["forged" if forged else verb, result] += 1
            self.found.asked += 1
            if forged and response.status != 401:
                self.found.problems.append(f"a forged action was answered {response.status}")
        if verb == "drain":
            await asyncio.sleep(chance.uniform(0.0, 0.5))
            async with self.session.post(f"{self.running.web}/v1/backends/{instance}/undrain", json={}) as response:
                if response.status != 200:
                    self.found.problems.append(f"undrain was answered {response.status}")

    # Clients.

    async def clients(self, count: int, seconds: float) -> None:
        """Let clients ask one request after the other until the time is over."""
        until_s = time.monotonic() + seconds

        async def one() -> None:
            while time.monotonic() < until_s:
                await self._ask()
                await asyncio.sleep(self.chance.uniform(0.0, 0.1))

        await asyncio.gather(*(one() for _ in range(count)))

    async def _ask(self) -> None:
        chance = self.chance
        body: Json = {
            "model": "fake",
            "temperature": 0,
            "max_tokens": chance.randint(1, 90),
            "stream": chance.random() < 0.9,
            "return_token_ids": chance.random() < 0.5,
            "stream_options": {"include_usage": True},
        }
        if chance.random() < 0.3:
            body["min_tokens"] = 1  # not to be resumed
        question = f"tell me of {chance.randrange(10**6)}"
        if chance.random() < 0.5:
            body["prompt"] = question
        else:
            body["messages"] = [{"role": "user", "content": question}]
        trace_id = f"{chance.getrandbits(127) + 1:032x}"
        path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
        headers = {"traceparent": f"00-{trace_id}-{'1' * 16}-01"}
        if body["stream"]:
            end = self.found.owned[trace_id] = await self._stream(body, headers)
        else:
            end = await self._pass(path, body, headers)
        self.found.ends[end] += 1
        if end.startswith("WRONG"):
            self.found.problems.append(f"{end}: {body}")

    async def _stream(self, body: Json, headers: dict[str, str]) -> str:
        """Return how a stream ended for its client."""
        manner = self.chance.choices(("reads", "slow", "vanishes"), (0.6, 0.1, 0.3))[0]
        leaves_after = self.chance.randint(1, 30)
        reads = 0

        async def between(_: Reply) -> None:
            nonlocal reads
            reads += 1
            if manner == "vanishes" and reads > leaves_after:
                raise _LeftError
            if manner == "slow":
                await asyncio.sleep(0.05)

        sent = asyncio.Event()
        asking = asyncio.ensure_future(
            read(self.session, self.running.url + "/v1", body, headers=headers, between=between, reported=sent)
        )
        waiting = asyncio.ensure_future(sent.wait())  # a request that was not sent is not to be accounted for
        await asyncio.wait({asking, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        limit_s = self.chance.uniform(0.2, 1.5) if manner == "vanishes" else QUIET_S
        try:
            reply = await asyncio.wait_for(asking, limit_s)
        except _LeftError:
            return "vanished"
        except TimeoutError:
            return "vanished" if manner == "vanishes" else "WRONG: no end"
        end = judged(reply, body)
        if manner == "reads" and end == "whole":
            self.found.gaps_s.append(reply.gap_s)
        return end

    async def _pass(self, path: str, body: Json, headers: dict[str, str]) -> str:
        del body["stream_options"]
        try:
            async with self.session.post(
                self.running.url + path, json=body, headers=headers, allow_redirects=False
            ) as response:
                await response.read()
                return f"passed {response.status // 100}xx"
        except aiohttp.ClientError:
            return "passed, cut"

    # What is looked at.

    async def metrics(self) -> dict[str, float]:
        async with self.session.get(self.running.web + "/metrics") as response:
            lines = (await response.text()).splitlines()
        pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}

    async def sample(self) -> Sample:
        flying = sum(v for k, v in (await self.metrics()).items() if k.startswith("otel_llm_relay_streams_in_flight"))
        pid = self.running.process.pid
        rss = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * PAGE
        files = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
        tasks = await self._tasks()
        return Sample(time.monotonic() - self._begun_s, files, rss, int(flying), tasks, Counter(self.found.ends))

    async def _tasks(self) -> int:
        """Ask the relay how many tasks it has."""
        self._tasks_file.unlink(missing_ok=True)
        self.running.process.send_signal(signal.SIGUSR2)
        async with asyncio.timeout(QUIET_S):
            while not self._tasks_file.exists():
                await asyncio.sleep(0.01)
        return int(self._tasks_file.read_text())

    async def watch(self, every_s: float, say: Callable[[Sample], None]) -> None:
        while True:
            await asyncio.sleep(every_s)
            with suppress(aiohttp.ClientError):
                self.found.samples.append(await self.sample())
                say(self.found.samples[-1])

    async def rest(self) -> Sample:
        """Wait until nothing is in flight and kept connections are closed; return what is left then."""
        until_s = time.monotonic() + QUIET_S
        files, tasks = self.found.samples[0].open_files, self.found.samples[0].tasks
        while True:
            now = await self.sample()
            async with self.session.get(self.running.web + "/v1/streams") as response:
                shown = (await response.json())["streams"]
            kept = now.open_files > files + KEPT or now.tasks > tasks + KEPT
            if not (now.in_flight or shown or kept) or time.monotonic() > until_s:
                if shown or now.in_flight:
                    self.found.problems.append(f"{now.in_flight} streams in flight, {len(shown)} shown, at rest")
                if now.open_files > files + KEPT:
                    self.found.problems.append(f"{now.open_files} files open at rest, {files} before")
                if now.tasks > tasks + KEPT:
                    self.found.problems.append(f"{now.tasks} tasks at rest, {tasks} before")
                return now
            await asyncio.sleep(0.2)


async def _note_sent(
    _session: aiohttp.ClientSession, context: Any, _chunk: aiohttp.TraceRequestChunkSentParams
) -> None:
    if isinstance(context.trace_request_ctx, asyncio.Event):
        context.trace_request_ctx.set()


@asynccontextmanager
async def _receiving(receiver: Receiver) -> AsyncIterator[str]:
    app = web.Application(client_max_size=64 << 20)
    app.router.add_post("/v1/traces", receiver.take)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def soak(
    folder: Path,
    seconds: float,
    clients: int = 24,
    seed: int = 1,
    say: Callable[[Sample], None] = lambda _: None,
    faults: float = 0.35,
) -> Soaked:
    """Run it in this loop; the relay is a process of its own. `faults`: the share of requests that meet one."""
    (folder / "rules.yaml").write_text(RULES)
    (folder / "relay.yaml").write_text(SETTINGS)
    write_secret(folder)
    found, received, chance = Soaked(), Receiver(), random.Random(seed)
    engines = [FakeEngine(FakeModel(), rate=100) for _ in range(3)]
    async with _receiving(received) as endpoint:
        for engine in engines:
            await engine.start()
        arguments = [part for engine in engines for part in ("--backend", engine.url)]
        process = relay(
            *arguments, "--rules", folder / "rules.yaml", "--config", folder / "relay.yaml",
            more={
                "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
                "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
                "PYTHONPATH": str(TESTS),
                TASKS_FILE: str(folder / "tasks"),
            },
            module="support.relay.counted_tasks",
        )  # fmt: skip
        run = Soak(engines, await asyncio.to_thread(process.__enter__), chance, found, faults, folder / "tasks")
        try:
            await run.clients(2, 0.5)  # what is made once is made
            await asyncio.sleep(0.5)
            found.samples.append(await run.sample())
            for engine in engines:
                engine.fault_of = run.fault_of
            beside = [
                asyncio.create_task(run.trouble(seconds)),
                asyncio.create_task(run.watch(max(1.0, seconds / 60), say)),
            ]
            commands = asyncio.create_task(run.commands())
            await run.clients(clients, seconds)
            run.over = True
            await asyncio.wait_for(commands, QUIET_S)
            for task in beside:
                task.cancel()
            for ended in await asyncio.gather(*beside, return_exceptions=True):
                if not isinstance(ended, asyncio.CancelledError):
                    found.problems.append(f"what happens beside the clients stopped: {ended!r}")
            found.samples.append(await run.rest())
            await asyncio.sleep(1.1)  # `/metrics` is rendered once a second: an older rendering lacks the last counts
            samples = await run.metrics()
        finally:
            await run.session.close()
            await asyncio.to_thread(process.__exit__, None, None, None)
        account(found, received, samples)
        for engine in engines:
            await engine.stop()
    return found
