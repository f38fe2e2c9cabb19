"""The orders of the relay's queue on a real vLLM: G, attainment and latency of bursts of two kinds of requests.

    make vllm-env && python benchmarks/relay_order.py [--in-flight 4] [--rounds 5] [--json OUT]

A burst of requests arrives at a relay before one vLLM of this machine's CPU: half are of the class `code`, with a
target for the whole reply, half of the class `chat`, with targets for the first token and the time a token. Targets are
shares of the time in which the burst is served, so that about half can be met. A round serves the same burst once by
each order, in a drawn sequence. G is the objective of the paper (arXiv 2504.14966, section 4): requests that met their
class over the sum of their latencies, in 1/s. Replies have the lengths of `max_tokens`, which the relay knows.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path
from random import Random
from statistics import mean
from typing import TYPE_CHECKING, Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import aiohttp
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from support.integration.vllm_server import VllmServer
from support.otlp_receiver import HttpReceiver
from support.relay.process import relay
from support.relay.readers import read, read_all

from otel_llm.rules.files.slo_file import load_slo
from otel_llm.slo.request import judge

if TYPE_CHECKING:
    from collections.abc import Sequence

    from support.relay.readers import Reply

    from otel_llm.slo.classes import SloClasses

ORDERS = ("fcfs", "edf", "sjf", "anneal")
LONGEST_INPUT, LONGEST_OUTPUT = 200, 400
TOKEN_IDS = (5, 500)


class EngineRequest(NamedTuple):
    """A request of a burst: its class and its body."""

    slo: str
    body: dict[str, Any]


class Served(NamedTuple):
    """A burst by one order: the share that met, the mean latency, and G."""

    attainment: float
    latency_s: float
    g_per_s: float


def burst(count: int, seed: int) -> list[EngineRequest]:
    """Draw a burst; chats are shorter than code."""
    chance = Random(seed)
    asked = []
    for number in range(count):
        slo, longest = (("code", LONGEST_OUTPUT), ("chat", LONGEST_OUTPUT // 3))[number % 2]
        prompt = [chance.randint(*TOKEN_IDS) for _ in range(chance.randint(1, LONGEST_INPUT))]
        output = chance.randint(2, longest)
        body = {"model": "tiny", "prompt": prompt, "temperature": 0, "max_tokens": output, "ignore_eos": True}
        asked.append(EngineRequest(slo, body))
    chance.shuffle(asked)
    return asked


def read_burst(url: str, asked: Sequence[EngineRequest]) -> list[Reply]:
    """Send all requests of a burst at once, and read the replies."""

    async def go() -> list[Reply]:
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None, sock_read=600)
        ) as session:
            return await asyncio.gather(
                *(read(session, url, one.body, headers={"x-slo-class": one.slo}) for one in asked)
            )

    return asyncio.run(go())


def judged(replies: Sequence[Reply], asked: Sequence[EngineRequest], classes: SloClasses) -> Served:
    """Judge the replies of a burst by their classes.

    Raises:
        RuntimeError: a reply is not whole.
    """
    broken = [reply.errors or reply.status for reply in replies if not reply.done or reply.errors]
    if broken:
        raise RuntimeError(f"{len(broken)} of {len(replies)} replies are broken, as {broken[0]}")
    met = [
        bool(judge(reply.times_ns, reply.begun_ns, reply.times_ns[-1], "completed", classes.get(one.slo)).met)
        for reply, one in zip(replies, asked, strict=True)
    ]
    latencies_s = [(reply.times_ns[-1] - reply.begun_ns) / 1e9 for reply in replies]
    return Served(mean(met), mean(latencies_s), sum(met) / sum(latencies_s))


def slo_text(alone_s: float) -> str:
    """Return the classes, with targets that follow from the time in which the burst is served."""
    code, first = f"{round(alone_s * 0.5 * 1e3)}ms", f"{round(alone_s * 0.3 * 1e3)}ms"
    return (
        "version: 1\ndefault: chat\nclasses:\n"
        f"  code: {{deadline: {{policy: e2e, e2e: {code}}}}}\n"
        f"  chat: {{deadline: {{policy: ttft_tpot, ttft: {first}, tpot: 100ms}}}}\n"
    )


def compare(options: argparse.Namespace, folder: Path) -> dict[str, list[Served]]:
    """Serve each burst by each order; return what each order gave, by round."""
    found: dict[str, list[Served]] = {order: [] for order in options.orders}
    with VllmServer(folder / "vllm.log", "--no-enable-prefix-caching") as server, HttpReceiver() as received:
        sent = {"OTEL_EXPORTER_OTLP_ENDPOINT": received.endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
        warm = [one.body for one in burst(options.requests, options.seed)]
        read_all([server.url], warm)
        replies = [read_all([server.url], [body])[0] for body in warm]
        alone_s = sum(reply.times_ns[-1] - reply.begun_ns for reply in replies) / 1e9 / options.in_flight
        slo = folder / "slo.yaml"
        slo.write_text(slo_text(alone_s), encoding="utf-8")
        classes = load_slo(slo)
        print(slo.read_text(encoding="utf-8"))
        for number in range(options.rounds):
            asked = burst(options.requests, options.seed + 1 + number)
            for order in Random(number).sample(options.orders, len(options.orders)):
                config = folder / f"{order}.yaml"
                config.write_text(
                    "version: 1\nbackends:\n"
                    f"  a: {{url: '{server.url.removesuffix('/v1')}', profile: {options.profile}}}\n"
                    f"queue: {{in_flight: {options.in_flight}, order: {order}, max_wait: 600s}}\n",
                    encoding="utf-8",
                )
                with relay("--config", config, "--slo", slo, more=sent) as running:
                    served = judged(read_burst(running.url + "/v1", asked), asked, classes)
                found[order].append(served)
                print(f"round {number + 1}, {order}: {served}")
    return found


def show(found: dict[str, list[Served]]) -> None:
    """Print the means over the rounds, and G beside that of the first order."""
    table = Table(title="Means over the rounds", title_justify="left", box=SIMPLE_HEAD)
    for heading in ("order", "attainment", "latency, s", "G, 1/s", "G against the first"):
        table.add_column(heading, justify="right", no_wrap=True)
    first = mean(one.g_per_s for one in next(iter(found.values())))
    for order, rounds in found.items():
        g = mean(one.g_per_s for one in rounds)
        shares = f"{mean(one.attainment for one in rounds):.1%}", f"{mean(one.latency_s for one in rounds):.3f}"
        table.add_row(order, *shares, f"{g:.4f}", f"{g / first:.2f}")
    Console(width=100).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=24, help="of a burst")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--in-flight", type=int, default=1, help="requests that the replica has at once")
    parser.add_argument("--orders", type=lambda text: text.split(","), default=list(ORDERS))
    parser.add_argument("--profile", default="cpu-tiny", help="a profile that ships, or the path of one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="OUT")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        found = compare(options, Path(work))
    show(found)
    if options.json:
        rows = {order: [one._asdict() for one in rounds] for order, rounds in found.items()}
        options.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
