"""An application that streams from an honest provider and a hostile one: a process, and the providers in another.

The honest one sends a chunk each 20 ms on each stream, whose text is the instant of its sending. Its lag until the
application has it is what the other users of the application feel.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import resource
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # this file is the program of its processes, too

from abuse_load.hostile_replies import REPLIES, content

if TYPE_CHECKING:
    from collections.abc import Iterator

HONEST_STREAMS, EVERY_S = 10, 0.02
HOSTILE_STREAMS = 4
END = b"data: [DONE]\n\n"
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


@contextmanager
def providers() -> Iterator[str]:
    """Start the providers' process, and yield its address."""
    process = subprocess.Popen([sys.executable, __file__, "providers"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()


def run(address: str, attack: str, *, sink: int, seconds: float, bytes_s: float) -> dict[str, Any]:
    """Run the application in a process of its own; return the lags of honest chunks (ms), CPU and memory.

    `sink`: the port of what takes its exports, over HTTP; 0: it is not recorded.
    """
    asked = {"address": address, "attack": attack, "sink": sink, "seconds": seconds, "bytes_s": bytes_s}
    command = [sys.executable, __file__, "application", json.dumps(asked)]
    found: dict[str, Any] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout)
    return found


async def _serve() -> None:
    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            asked = json.loads(await reader.readexactly(length))
            writer.write(_HEAD)
            until_s = time.monotonic() + asked["seconds"]
            if asked["attack"]:
                await _attack(writer, REPLIES[asked["attack"]], asked["bytes_s"] / HOSTILE_STREAMS, until_s)
            else:
                await _honest(writer, until_s)
            writer.write(END)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(one, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await server.serve_forever()


async def _honest(writer: asyncio.StreamWriter, until_s: float) -> None:
    due_s = time.monotonic()
    while due_s < until_s:
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        writer.write(content(str(time.monotonic_ns())))
        await writer.drain()
        due_s += EVERY_S


async def _attack(writer: asyncio.StreamWriter, reply: Any, bytes_s: float, until_s: float) -> None:
    began_s, sent = time.monotonic(), 0
    for number in itertools.count():
        if time.monotonic() >= until_s:
            return
        chunk = reply(number)
        writer.write(chunk)
        await writer.drain()
        sent += len(chunk)
        await asyncio.sleep(max(0.0, began_s + sent / bytes_s - time.monotonic()))


async def _apply(asked: dict[str, Any]) -> dict[str, Any]:
    import openai

    client = openai.AsyncOpenAI(base_url=asked["address"], api_key="sk-x", max_retries=0, timeout=600)
    lags_ms: list[float] = []
    failures: list[str] = []

    async def stream(attack: str) -> None:
        reported = {"attack": attack, "seconds": asked["seconds"], "bytes_s": asked["bytes_s"]}
        try:
            reply = await client.chat.completions.create(model="m", messages=[], stream=True, extra_body=reported)
            async for chunk in reply:
                if not attack and chunk.choices:
                    lags_ms.append((time.monotonic_ns() - int(chunk.choices[0].delta.content or 0)) / 1e6)  # noqa: PERF401
        except Exception as error:  # noqa: BLE001  what the bare SDK raises, too
            failures.append(type(error).__name__)

    attacks = [asked["attack"]] * HOSTILE_STREAMS if asked["attack"] else []
    await asyncio.gather(*(stream(attack) for attack in ([""] * HONEST_STREAMS + attacks)))
    return {
        "lags_ms": lags_ms,
        "failures": failures,
        "cpu_s": time.process_time(),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main() -> None:
    """Run the role that the first argument names."""
    if sys.argv[1] == "providers":
        asyncio.run(_serve())
        return
    asked = json.loads(sys.argv[2])
    if asked["sink"]:
        os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{asked['sink']}"
        os.environ["OTEL_EXPORTER_OTLP_PROTOCOL"] = "http/protobuf"
        import otel_llm

        otel_llm.instrument()
    print(json.dumps(asyncio.run(_apply(asked))))


if __name__ == "__main__":
    main()
