"""What the vLLM plugin and the middleware cost: the same load on a vLLM with them and on one without, in turn.

    make vllm-env && python benchmarks/vllm_plugin.py --rounds 12
    python benchmarks/vllm_plugin.py --rounds 12 --hidden 512 --layers 12

All variants run side by side and are asked one after the other, each round in the other order, so that what the machine
does meanwhile falls on all. A server that has just been asked is quicker: two rounds, one in each order, count as one.
Printed per variant: tokens per second of the wall clock, and the CPU that its API server (where all of our code runs)
spent per token, each as the median; then the change against the bare server as the median of these pairs' own ratios,
with its 90 % interval (bootstrap over pairs).

Without `--hidden` and `--layers` the model is of two layers, 128 wide: its steps take next to nothing, so that clients,
engine and API server fill the machine and all CPU of ours is missing elsewhere. Weights are random either way.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.integration.vllm_server import VllmServer

VARIANTS: dict[str, dict[str, Any]] = {
    "bare": {},
    "plugin": {"plugin": True},
    "middleware": {"middleware": True},
    "both": {"plugin": True, "middleware": True},
}


def cpu_s(server: VllmServer) -> float:
    """Return the CPU time of a server's API process so far: of the leader of its group, all of its threads."""
    threads = Path(f"/proc/{server.group}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


async def stream(port: int, tokens: int) -> None:
    body = json.dumps(
        {
            "model": "tiny",
            "stream": True,
            "max_tokens": tokens,
            "ignore_eos": True,
            "messages": [{"role": "user", "content": "def f(x):"}],
        }
    ).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: here\r\nConnection: close\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    tail = b""
    while got := await reader.read(1 << 16):
        tail = (tail + got)[-64:]
    assert b"[DONE]" in tail, tail
    writer.close()


async def load(port: int, streams: int, requests: int, tokens: int) -> None:
    turn = asyncio.Semaphore(streams)

    async def one() -> None:
        async with turn:
            await stream(port, tokens)

    await asyncio.gather(*(one() for _ in range(requests)))


def model(options: argparse.Namespace) -> list[str]:
    """Return vLLM's arguments for a model of this size."""
    heads = options.hidden // 32
    size = {
        "hidden_size": options.hidden,
        "intermediate_size": 2 * options.hidden,
        "num_hidden_layers": options.layers,
        "num_attention_heads": heads,
        "num_key_value_heads": max(1, heads // 2),
    }
    return ["--load-format", "dummy", "--hf-overrides", json.dumps(size)]


def measure(server: VllmServer, options: argparse.Namespace) -> tuple[float, float]:
    """Return tokens per second, and us of CPU per token, of one round."""
    cpu, start = cpu_s(server), time.monotonic()
    asyncio.run(load(server.port, options.streams, options.requests, options.tokens))
    tokens = options.requests * options.tokens
    return tokens / (time.monotonic() - start), (cpu_s(server) - cpu) / tokens * 1e6


def pairs(rounds: list[float]) -> list[float]:
    """Return the mean of every two rounds."""
    return [(first + second) / 2 for first, second in zip(rounds[::2], rounds[1::2], strict=True)]


def interval(ratios: list[float], rng: random.Random) -> tuple[float, float]:
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(2000))
    return medians[100], medians[1899]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--hidden", type=int, default=128, help="width of the model, a multiple of 32")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--variants", default="bare,plugin", help="of " + ", ".join(VARIANTS))
    options = parser.parse_args()
    if options.rounds < 2 or options.rounds % 2:
        parser.error("--rounds takes an even number: two rounds, one in each order, count as one")
    names = options.variants.split(",")
    rng = random.Random(1)
    results: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    with contextlib.ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory()))
        servers = {
            name: running.enter_context(VllmServer(folder / name, *model(options), **VARIANTS[name])) for name in names
        }
        for server in servers.values():
            measure(server, options)  # warm
        for number in range(options.rounds):
            order = names if number % 2 == 0 else names[::-1]
            for name in order:
                results[name].append(measure(servers[name], options))
            print(
                f"round {number + 1:2}  "
                + "  ".join(
                    f"{name} {results[name][-1][0]:7.0f} tok/s {results[name][-1][1]:6.1f} us" for name in names
                ),
                flush=True,
            )
    print(f"\n{'':12}{'tokens/s':>10}{'change':>26}{'CPU us/token':>14}{'change':>26}")
    for name in names:
        cells = []
        for column in (0, 1):
            own, bare = (pairs([found[column] for found in results[one]]) for one in (name, names[0]))
            ratios = [mine / theirs - 1 for mine, theirs in zip(own, bare, strict=True)]
            low, high = interval(ratios, rng)
            change = "" if name == names[0] else f"{statistics.median(ratios):+.1%} [{low:+.1%}, {high:+.1%}]"
            cells.append((statistics.median(own), change))
        print(f"{name:12}{cells[0][0]:10.0f}{cells[0][1]:>26}{cells[1][0]:14.1f}{cells[1][1]:>26}")


if __name__ == "__main__":
    main()
