"""Read hostile replies with a client library, bare and recorded, each in a process of its own; print the results.

`python -m support.hostile.client URL`: one JSON object a line.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import sys
from collections.abc import Callable
from typing import Any

import aiohttp
import openai
import requests
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.hostile.server import ATTACKS
from support.patience import WAIT_S

import otel_llm

KEY = "none"
BODY: dict[str, Any] = {"model": "m", "messages": [], "stream": True}
MIB_OF_KIB = 1024


def read_openai(url: str) -> int:
    with openai.OpenAI(base_url=url, api_key=KEY, max_retries=0, timeout=WAIT_S) as client:
        return sum(1 for _ in client.chat.completions.create(model="m", messages=[], stream=True))


def read_requests(url: str) -> int:
    with requests.post(f"{url}/v1/chat/completions", json=BODY, stream=True, timeout=WAIT_S) as response:
        return sum(len(piece) > 0 for piece in response.iter_content(65536))


def read_aiohttp(url: str) -> int:
    async def go() -> int:
        async with aiohttp.ClientSession() as session, session.post(f"{url}/v1/chat/completions", json=BODY) as answer:
            count = 0
            async for _ in answer.content.iter_any():
                count += 1
            return min(count, 1)  # in how many pieces it comes is chance

    return asyncio.run(go())


CLIENTS: dict[str, Callable[[str], int]] = {
    "openai": read_openai,
    "requests": read_requests,
    "aiohttp": read_aiohttp,
}


def measured(client: str, attack: str, url: str, *, recorded: bool) -> dict[str, object]:
    """Return how a reading ended, and the most memory that it took (MiB)."""
    if recorded:
        otel_llm.instrument(exporter=InMemorySpanExporter())
    told: list[str] = []
    heard = logging.Handler()
    heard.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("otel_llm").addHandler(heard)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        ended = f"read {CLIENTS[client](f'{url}/{attack}')}"
    except Exception as error:  # noqa: BLE001  it is compared
        ended = type(error).__qualname__
    if recorded:
        otel_llm.flush(20)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"ended": ended, "told": told, "mib": (after - before) / MIB_OF_KIB}


def apart(client: str, attack: str, url: str, *, recorded: bool) -> dict[str, object]:
    """Return the same from a child, whose memory is its own."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writing, json.dumps(measured(client, attack, url, recorded=recorded)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        raw = pipe.read()
    os.waitpid(child, 0)
    found: dict[str, object] = json.loads(raw)
    return found


def main(url: str) -> None:
    otel_llm.instrument(exporter=InMemorySpanExporter())  # every child has its modules, also the bare ones
    otel_llm.uninstrument()
    for client in CLIENTS:
        for attack in ATTACKS:
            bare, recorded = (apart(client, attack, url, recorded=recorded) for recorded in (False, True))
            print(json.dumps({"client": client, "attack": attack, "bare": bare, "recorded": recorded}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
