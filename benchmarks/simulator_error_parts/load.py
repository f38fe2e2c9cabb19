"""Requests to an OpenAI-compatible server, at intended times or so many at once, and the token times of the replies."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import aiohttp

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from random import Random

TOKEN_IDS = (5, 500)
"""Prompts are drawn ids of this range, which every vocabulary has: their lengths are exact, and no two are alike."""
TIMEOUT_S = 600.0


class Lengths(NamedTuple):
    """The smallest and the largest prompt and reply, in tokens; drawn evenly."""

    input: tuple[int, int]
    output: tuple[int, int]

    def draw(self, rng: Random) -> tuple[int, int]:
        """Return a prompt's and a reply's length."""
        return rng.randint(*self.input), rng.randint(*self.output)


@dataclass(frozen=True)
class Served:
    """A request as its client saw it: tokens, when it was sent, and the time of each token (unix ns)."""

    input: int
    sent_ns: int
    times_ns: Sequence[int]


class Client:
    """Sends completions to the server at `url`, which ends in /v1."""

    def __init__(self, session: aiohttp.ClientSession, url: str, model: str) -> None:
        self._session = session
        self._url = f"{url.rstrip('/')}/completions"
        self._model = model

    async def send(self, prompt: Sequence[int], output: int) -> Served:
        """Send a prompt of token ids and read its reply of `output` tokens."""
        body = {
            "model": self._model,
            "prompt": list(prompt),
            "max_tokens": output,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        data = json.dumps(body).encode()
        times_ns: list[int] = []
        sent_ns = time.time_ns()
        async with self._session.post(self._url, data=data, headers={"Content-Type": "application/json"}) as reply:
            if reply.status != 200:
                raise RuntimeError(f"{self._url}: {reply.status}: {(await reply.text())[:500]}")
            async for line in reply.content:
                if line.startswith(b"data: {"):
                    now_ns = time.time_ns()
                    usage = json.loads(line[6:]).get("usage") or {}
                    times_ns += [now_ns] * (usage.get("completion_tokens", 0) - len(times_ns))
        if len(times_ns) != output:
            raise RuntimeError(f"{self._url}: {len(times_ns)} tokens of {output}: the server counts none in its chunks")
        return Served(len(prompt), sent_ns, times_ns)


def prompt_of(rng: Random, tokens: int) -> list[int]:
    """Draw the token ids of a prompt."""
    return [rng.randint(*TOKEN_IDS) for _ in range(tokens)]


async def ladder(
    url: str, model: str, lengths: Lengths, levels: Sequence[int], seconds: float, rng: Random
) -> list[Served]:
    """Keep so many requests under way at each level, for some seconds each."""
    found: list[Served] = []
    async with _client(url, model) as client:
        for level in levels:
            end_s = time.monotonic() + seconds

            async def keep_asking(until_s: float = end_s) -> None:
                while time.monotonic() < until_s:
                    tokens, output = lengths.draw(rng)
                    found.append(await client.send(prompt_of(rng, tokens), output))

            await asyncio.gather(*(keep_asking() for _ in range(level)))
    return found


async def poisson(url: str, model: str, lengths: Lengths, rate: float, seconds: float, rng: Random) -> list[Served]:
    """Send requests at drawn times, whatever has become of those before; the first at once.

    Return them as they were drawn: two that are due almost together may be sent the other way round.
    """
    plan, at_s = [], 0.0
    while at_s < seconds:
        tokens, output = lengths.draw(rng)
        plan.append((at_s, prompt_of(rng, tokens), output))
        at_s += rng.expovariate(rate)
    async with _client(url, model) as client:
        begin_s = time.monotonic()

        async def at_its_time(after_s: float, prompt: Sequence[int], output: int) -> Served:
            await asyncio.sleep(max(0.0, begin_s + after_s - time.monotonic()))
            return await client.send(prompt, output)

        return await asyncio.gather(*(at_its_time(*one) for one in plan))


@asynccontextmanager
async def _client(url: str, model: str) -> AsyncIterator[Client]:
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        yield Client(session, url, model)
