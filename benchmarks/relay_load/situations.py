"""What streams meet beside a steady load: many starts at once, large bodies beside them, faults, a stall of all."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from relay_load import engine
from relay_load.load import Load, measure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

STARTS: Final = Load(streams=50, tokens=20, pace=50.0, within_s=0.02)
READER_PACE: Final = 100.0
SETTLED_S: Final = 0.5
"""How long the reader reads with nothing beside it, and then with a large body."""
BODIES: Final = {
    "a body of 8 MiB": (8 << 20, 0),
    "a body of 31 MiB": (31 << 20, 0),
    "260,000 ids of a prompt (2 MB)": (0, 260_000),
}
FAULTS: Final = ("end", "reset", "error", "status")
FAULTY_TOKENS: Final = 40
LIMIT_S: Final = 30.0
THRESHOLD_S: Final = 0.5
STORM: Final = 200
STORM_PACE: Final = 5.0
STORM_LASTS_S: Final = 20.0
"""How long a stream of the storm would take."""

Where = tuple[int, int | None]
"""A port, and the session of the process behind it."""


async def starts(ports: Mapping[str, Where], repetitions: int) -> dict[str, Any]:
    """Start 50 streams within 20 ms at each port in turn; return the time to the first token that is added (ms)."""
    troubles: Counter[str] = Counter()
    found: dict[str, list[float]] = {name: [] for name in ports}
    for _ in range(repetitions):
        for name, (port, session) in ports.items():
            found[name].append((await measure(port, session, STARTS, troubles))["first_p50_us"] / 1e3)
    straight = next(iter(found.values()))
    added = {name: median(np.subtract(each, straight).tolist()) for name, each in found.items()}
    return {"first_p50_ms": {name: median(each) for name, each in found.items()}, "added_ms": added, **troubles}


async def bodies(ports: Mapping[str, Where], repetitions: int) -> dict[str, Any]:
    """Return by how much a large body moves the longest gap of another reader, at each port in turn (ms)."""
    found: dict[str, dict[str, list[float]]] = {name: {body: [] for body in BODIES} for name in ports}
    for _ in range(repetitions):
        for name, (port, _session) in ports.items():
            for body, (size, ids) in BODIES.items():
                found[name][body].append(await _moved_gap_ms(port, size, ids))
    return {name: {body: median(each) for body, each in of.items()} for name, of in found.items()}


async def _moved_gap_ms(port: int, size: int, ids: int) -> float:
    tokens = int(READER_PACE * (2 * SETTLED_S + LIMIT_S))
    asked = engine.chat(tokens, f"to be answered at {READER_PACE} tokens a second")
    loop = asyncio.get_running_loop()
    _, reader = await loop.create_connection(lambda: engine.Client(asked, tokens), "127.0.0.1", port)
    await asyncio.sleep(SETTLED_S)
    middle_ns = time.monotonic_ns()
    await asyncio.sleep(SETTLED_S)
    before_ns = time.monotonic_ns()
    # It is made beforehand, so that this process is not what holds the reader up.
    large = engine.chat(2, f"a prompt with {ids} prompt ids " + "x" * size)
    begun_ns = time.monotonic_ns()
    await asyncio.wait_for(engine.read(port, large, 2), LIMIT_S)
    await asyncio.sleep(SETTLED_S / 4)
    reader.end("it was read for long enough")
    at_ns = np.array(reader.reply.read_ns)
    late_ns = at_ns - np.array(reader.reply.sent_ns)
    alone = late_ns[(at_ns > middle_ns) & (at_ns < before_ns)]
    beside = late_ns[at_ns > begun_ns]
    return float(beside.max() - alone.max()) / 1e6 if alone.size and beside.size else float("nan")


async def faults(
    backends: Sequence[engine.Server], ports: Mapping[str, Where], each: int
) -> dict[str, dict[str, dict[str, int]]]:
    """Return what became of streams whose first backend, of two, fails in mid-stream or before; by port and fault.

    `whole`; `told`: an error, a broken connection or another status; `invented`: tokens are missing, and the reply ends
    as if it were whole.
    """
    found: dict[str, dict[str, dict[str, int]]] = {name: {} for name in ports}
    for fault in FAULTS:
        for name, (port, _session) in ports.items():
            counts: Counter[str] = Counter()
            for number in range(each):
                left = [fault]  # for whichever backend is asked first
                for one in backends:
                    one.faults = left
                prompt = f"to be answered at 200 tokens a second, {number}"
                asked = engine.chat(FAULTY_TOKENS, prompt)
                reading = asyncio.ensure_future(engine.read(port, asked, FAULTY_TOKENS))
                await asyncio.wait({reading}, timeout=LIMIT_S)
                reading.cancel()
                counts[ending(await reading)] += 1
            found[name][fault] = dict(counts)
    for one in backends:
        one.faults = []
    return found


def ending(reply: engine.Reply) -> str:
    """Name how a reply ended for its client."""
    if reply.whole:
        return "whole"
    if reply.trouble == engine.TOO_LONG:
        return "stalled"
    missing = len(reply.sent_ns) < reply.tokens
    return "invented" if missing and not reply.error and (reply.finish or reply.done) else "told"


async def storm(source: engine.Server, other: engine.Server, port: int, web: int) -> dict[str, float]:
    """Stall 200 streams of one backend at one instant; return how late the other one is asked for the last of them.

    It is counted from the instant at which the rule may fire for the last stream: `THRESHOLD_S` behind its last token.
    """
    tokens = int(STORM_PACE * STORM_LASTS_S)
    asked = engine.chat(tokens, f"to be answered at {STORM_PACE} tokens a second")
    await engine.post(web, "/v1/backends/b/drain")
    reading = [asyncio.ensure_future(engine.read(port, asked, tokens)) for _ in range(STORM)]
    await _until(lambda: source.serving == STORM)
    await asyncio.sleep(3 / STORM_PACE)
    await engine.post(web, "/v1/backends/b/undrain")
    await asyncio.sleep(1 / STORM_PACE)
    other.resumed_ns.clear()
    other.resumed_pace = STORM_PACE
    source.goes_on.clear()
    stalled = source.serving  # on a busy machine some have moved before
    late_s = await _until(lambda: len(other.resumed_ns) >= stalled)
    asked_ns, due_ns = sorted(other.resumed_ns), source.last_ns + int(THRESHOLD_S * 1e9)
    source.goes_on.set()
    await asyncio.wait(reading, timeout=2 * LIMIT_S)
    found = {
        "late_ms": late_s * 1e3,
        "stalled": float(stalled),
        "asked": float(len(asked_ns)),
        "whole": float(sum(one.done() and one.result().whole for one in reading)),
    }
    for share in (50, 100):
        at_ns = asked_ns[(len(asked_ns) - 1) * share // 100] if asked_ns else 0
        found[f"asked_p{share}_ms"] = (at_ns - due_ns) / 1e6 if asked_ns else float("nan")
    return found


async def _until(true: Callable[[], bool]) -> float:
    """Wait until something is true, not for ever; return by how much this process ran late meanwhile, at most (s)."""
    now_s = time.monotonic()
    until_s, late_s = now_s + LIMIT_S, 0.0
    while not true() and now_s < until_s:
        due_s = now_s + 0.005
        await asyncio.sleep(0.005)
        now_s = time.monotonic()
        late_s = max(late_s, now_s - due_s)
    return late_s


RULES: Final = json.dumps({  # JSON is YAML
    "version": 1,
    "groups": [{
        "name": "g", "scope": "stream",
        "rules": [{
            "rule": "Stalled", "when": f"tokens_read > 0 && gap_seconds > {THRESHOLD_S}",
            "actions": [{
                "migrate": {"to": "least_load", "only_if": "exact_resume"}, "mode": "enforce", "ttl": "10s",
                "budget": {"per_request": 3, "per_instance": "1000 in 10s", "in_flight": 1000},
            }],
        }],
    }],
})  # fmt: skip
