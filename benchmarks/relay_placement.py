"""What a placement policy is worth: the same uneven requests through the relay to two simulated engines, in turn.

    python benchmarks/relay_placement.py                                     # every policy that the relay has
    python benchmarks/relay_placement.py --policies least_load,spread --rate 7 --seeds 1 2 --slower 1.5 --json out.json

Two engines (`relay_load/replica.py`) in real time, whose iterations take longer with the batch, its contexts and the
prompts that are read; `--slower` makes the second one slower. Requests arrive as a Poisson process; most are short, 15
in a hundred have prompts of 2,000 to 6,000 tokens and long replies. Seeds fix arrivals and lengths, so that each policy
gets the same; the runs of all seeds go on side by side, each with engines and a relay of its own, and are added up.

Times are the clients'. A reader's idle time and whether a request met its deadline are judged as the audit does, by a
class of the shipped `slo.yaml`, which the relay uses, too. `late` is the share of the engines' iterations that this
machine, and not the simulation, made 5 ms or more late: the rest of a row is worth something while it is small.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from relay_load import engine, peers
from relay_load.table import aligned, machine, number

from otel_llm.rules.files.slo_file import load_slo
from otel_llm.scheduling.placement import POLICIES
from otel_llm.slo.batch.many import judge_many
from otel_llm.slo.batch.recorded import Recorded

if TYPE_CHECKING:
    from otel_llm.slo.classes import SloClass

LONG_SHARE: Final = 0.15
SHORT: Final = ((30, 400), (30, 150))
"""Tokens of the prompt, and of the reply, from and to."""
LONG: Final = ((2000, 6000), (150, 400))
HEAD: Final = (
    *("whole", "attainment", "by seed", "TTFT p50", "TTFT p99", "gap p99", "idle mean", "idle p99"),
    *("requests on a", "tokens on a", "late"),
)
LIMIT_S: Final = 120.0
"""How long a run may go on behind its last arrival."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request of a run: when it is sent, s from its begin, and its tokens."""

    at_s: float
    prompt: int
    output: int


def requests(seed: int, rate: float, seconds: float) -> list[Request]:
    """Return the requests of a seed."""
    chance, now_s, found = random.Random(seed), 0.0, list[Request]()
    while (now_s := now_s + chance.expovariate(rate)) < seconds:
        prompt, output = LONG if chance.random() < LONG_SHARE else SHORT
        found.append(Request(now_s, chance.randint(*prompt), chance.randint(*output)))
    return found


def served(port: int) -> dict[str, int]:
    """Return what an engine says it served."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/served", timeout=10) as answer:
        said = json.load(answer)
    return {key: said[key] for key in ("requests", "tokens", "iterations", "late")}


def relay(policy: str, engines: list[int], folder: Path) -> peers.Launch:
    """Return how a relay with a policy is started in front of the engines."""
    settings, port = folder / "relay.yaml", peers.free_port()
    settings.write_text(json.dumps({"version": 1, "placement": policy}))  # JSON is YAML
    urls = [f"http://127.0.0.1:{one}" for one in engines]
    command = [sys.executable, "-m", "otel_llm.cli.main", "relay", "--config", str(settings)]
    command += ["--backend", f"a={urls[0]}", "--backend", f"b={urls[1]}"]
    exporting = {"OTEL_EXPORTER_OTLP_ENDPOINT": urls[0], "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
    command += ["--listen", f"127.0.0.1:{port}", "--web", "127.0.0.1:0"]
    return peers.Launch(command, port, variables=exporting, cwd=folder)


async def send(port: int, wanted: list[Request], slo_class: str) -> list[engine.Reply]:
    """Send each request at its time and return the replies, in order; one that takes too long is cut."""

    async def one(request: Request) -> engine.Reply:
        await asyncio.sleep(request.at_s)
        prompt = "word " * (request.prompt * 4 // 5)  # a token is four bytes
        asked = engine.chat(request.output, prompt, f"x-slo-class: {slo_class}\r\n")
        return await engine.read(port, asked, request.output)

    tasks = [asyncio.create_task(one(request)) for request in wanted]
    await asyncio.wait(tasks, timeout=wanted[-1].at_s + LIMIT_S)
    for task in tasks:
        task.cancel()
    return await asyncio.gather(*tasks)


async def run(policy: str, seed: int, chosen: argparse.Namespace, cores: list[int], folder: Path) -> dict[str, Any]:
    """Put a seed's requests through a relay with a policy; return the replies and what each engine served."""
    started: list[peers.Proxy] = []
    try:
        for name, slower in (("a", 1.0), ("b", chosen.slower)):
            port = peers.free_port()
            command = [sys.executable, "-m", "relay_load.replica", str(port), str(slower)]
            started.append(await peers.start(name, peers.Launch(command, port, cwd=peers.HERE), cores[0], folder))
        engines = [one.port for one in started]
        started.append(await peers.start("relay", relay(policy, engines, folder), cores[-1], folder))
        before = [await asyncio.to_thread(served, port) for port in engines]
        replies = await send(started[-1].port, requests(seed, chosen.rate, chosen.seconds), chosen.slo_class)
        after = [await asyncio.to_thread(served, port) for port in engines]
    finally:
        for one in reversed(started):
            one.stop()
    each = [{key: now[key] - then[key] for key in now} for then, now in zip(before, after, strict=True)]
    return {"replies": replies, "served": each}


def judged(runs: list[dict[str, Any]], slo_class: str) -> dict[str, Any]:
    """Return the figures of a policy's runs, added up; times in s."""
    slo = load_slo().get(slo_class)
    by_seed, every = [], list[engine.Reply]()
    for one in runs:
        every += one["replies"]
        by_seed.append(_met(one["replies"], slo))
    recorded = _recorded(every)
    found = judge_many(recorded, [slo])
    ttft, idle = found.column("ttft_s"), found.column("idle_s")
    gaps = [np.diff(reply.read_ns) / 1e9 for reply in every if len(reply.read_ns) > 1]
    totals = [{key: sum(one["served"][place][key] for one in runs) for key in runs[0]["served"][0]} for place in (0, 1)]
    a, b = totals
    return {
        "requests": len(every),
        "whole": sum(reply.whole for reply in every),
        "attainment": _met(every, slo),
        "attainment_by_seed": by_seed,
        "ttft_p50_s": float(np.percentile(ttft.values[ttft.known], 50)),
        "ttft_p99_s": float(np.percentile(ttft.values[ttft.known], 99)),
        "gap_p99_s": float(np.percentile(np.concatenate(gaps), 99)),
        "idle_mean_s": float(idle.values[idle.known].mean()),
        "idle_p99_s": float(np.percentile(idle.values[idle.known], 99)),
        "requests_on_a": a["requests"] / (a["requests"] + b["requests"]),
        "tokens_on_a": a["tokens"] / (a["tokens"] + b["tokens"]),
        "late": (a["late"] + b["late"]) / (a["iterations"] + b["iterations"]),
    }


def _recorded(replies: list[engine.Reply]) -> Recorded:
    return Recorded.of(
        [list(reply.read_ns) for reply in replies],
        [reply.begun_ns for reply in replies],
        [reply.ended_ns for reply in replies],
        ["completed" if reply.whole else "error" for reply in replies],
    )


def _met(replies: list[engine.Reply], slo: SloClass) -> float:
    met = judge_many(_recorded(replies), [slo]).column("met")
    return float(met.values[met.known].mean())


async def measure(chosen: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run every policy with every seed; return the figures by policy, and why there are none."""
    cores, found, not_run = sorted(os.sched_getaffinity(0)), dict[str, Any](), dict[str, str]()
    on = machine()
    os.sched_setaffinity(0, {cores[0]})
    for policy in chosen.policies:
        folders = [folder / f"{policy}-{seed}" for seed in chosen.seeds]
        for one in folders:
            one.mkdir()
        jobs = zip(chosen.seeds, folders, strict=True)
        running = (run(policy, seed, chosen, cores, where) for seed, where in jobs)
        runs = await asyncio.gather(*running, return_exceptions=True)
        troubles = [one for one in runs if isinstance(one, BaseException)]
        for trouble in troubles:
            if not isinstance(trouble, peers.NotRunError):
                raise trouble
            not_run[policy] = str(trouble)
        if not troubles:
            found[policy] = judged([one for one in runs if not isinstance(one, BaseException)], chosen.slo_class)
    settings = {key: getattr(chosen, key) for key in ("rate", "seconds", "seeds", "slower", "slo_class")}
    return {"machine": on, "settings": settings, "by_policy": found, "not_run": not_run}


def table(found: dict[str, Any]) -> str:
    """Return the figures as text for people."""
    on, asked = found["machine"], found["settings"]
    rows = [["", *HEAD]]
    for policy, one in found["by_policy"].items():
        by_seed = one["attainment_by_seed"]
        times = [one[key] for key in ("ttft_p50_s", "ttft_p99_s", "gap_p99_s", "idle_mean_s", "idle_p99_s")]
        shares = [f"{one[key]:.0%}" for key in ("requests_on_a", "tokens_on_a")]
        rows.append(
            [
                *(policy, f"{one['whole']}/{one['requests']}", f"{one['attainment']:.1%}"),
                f"{min(by_seed):.1%} to {max(by_seed):.1%}",
                *(number(value * 1e3, " ms") for value in times),
                *(*shares, f"{one['late']:.1%}"),
            ]
        )
    slower = "" if asked["slower"] == 1 else f", b {asked['slower']:g} times slower than a"
    seeds = ", ".join(str(seed) for seed in asked["seeds"])
    return (
        f"{on['cpu']}, {on['cores']} cores, Python {on['python']}\n"
        f"{asked['rate']:g} requests/s for {asked['seconds']:g} s, seeds {seeds}{slower}; "
        f"judged as {asked['slo_class']}\n\n{aligned(rows)}"
        + "".join(f"\n{policy}: not run: {reason}" for policy, reason in found["not_run"].items())
    )


def _policies(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in POLICIES:
            raise argparse.ArgumentTypeError(f"{name!r} is no policy: known are {', '.join(POLICIES)}")
    return list(dict.fromkeys(names))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", type=_policies, default=list(POLICIES), help="names, by commas")
    parser.add_argument("--rate", type=float, default=8.0, help="requests a second")
    parser.add_argument("--seconds", type=float, default=40.0, help="for how long requests arrive")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--slower", type=float, default=1.0, help="how many times slower the second engine is")
    parser.add_argument("--slo-class", default="code", help="of the shipped slo.yaml")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(measure(chosen, Path(folder)))
    print(table(found))
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
