"""The same load from a client as others are built: aiohttp, a task for each request, JSON parsed before the next read.

vLLM's `bench serve` reads this way (`iter_any`, time stamps taken once a chunk was split off and parsed).
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import aiohttp


async def one(session: aiohttp.ClientSession, url: str, prompt: str, tokens: int, at_ns: int) -> list[int]:
    """Send one request at its time; return when its tokens were read (monotonic ns)."""
    await asyncio.sleep(max(0.0, (at_ns - time.monotonic_ns()) / 1e9))
    body = {"model": "bench", "stream": True, "max_tokens": tokens, "messages": [{"role": "user", "content": prompt}]}
    times: list[int] = []
    async with session.post(url, json=body) as response:
        held = b""
        async for data in response.content.iter_any():
            held += data
            *events, held = held.split(b"\n\n")
            for event in events:
                payload = event.removeprefix(b"data: ")
                if payload == b"[DONE]":
                    continue
                choices: list[dict[str, Any]] = json.loads(payload)["choices"]
                if choices and choices[0]["delta"].get("content"):
                    times.append(time.monotonic_ns())
    return times


async def main() -> None:
    """Read a plan from standard input, run it, print the times by prompt, and the processor time."""
    plan = json.load(sys.stdin)
    start_ns, used = time.monotonic_ns() + 200_000_000, time.process_time()
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:
        found = await asyncio.gather(
            *(one(session, plan["url"], prompt, tokens, start_ns + at_ns) for prompt, tokens, at_ns in plan["requests"])
        )
    cpu_s = time.process_time() - used
    times = {prompt: times for (prompt, _, _), times in zip(plan["requests"], found, strict=True)}
    print(json.dumps({"start_ns": start_ns, "cpu_s": cpu_s, "times": times}))


if __name__ == "__main__":
    asyncio.run(main())
