"""What the relay costs beside its peers: added time to the first token and a token, CPU a chunk, chunks/s on one core.

    python benchmarks/relay.py                                # all peers that are installed: make relay-peers-env
    python benchmarks/relay.py --peers litellm,bytes --streams 5 20 --tokens 100 --json relay.json
    python benchmarks/relay.py --parts starts,bodies,faults,storm

Peers are LiteLLM's proxy, the routers of SGLang and of vLLM, and, if they are named, proxies that do nothing but
pass on (`relay_load/stacks.py`: bytes, aiohttp, httptools, each also with +uvloop): what asyncio and HTTP cost without
the relay. Each is one process pinned to one core; the backend and the clients, one program, have another. All stand in
front of the same backend, and get the same load in turn, in the same run; what cannot be had or started is named.

"Added" is the difference to the same quantile of clients that talk to the backend straight. Flat out, the backend
writes as fast as is taken. A load at a pace is so many streams of 50 tokens a second; it is not put on a proxy that
carried less flat out. A stream is whole when every token came, once and in order, and its end. CPU is that of the
process and its children. The relay asks for token ids, records every stream, exports to a socket that takes everything,
and evaluates the shipped rules; the peers do none of that.
A machine with one core has all of them share it, and the figures say little.

`--parts`: `steady` is the above. `starts`: 50 streams that begin within 20 ms, and the time to the first token that
is added. `bodies`: by how much the longest wait of another reader grows while a large body, or a line with the ids of
a long prompt, passes. `faults`: what clients get if one of two backends fails, of the relay and of LiteLLM.
`storm`: 200 streams of one backend stall at one instant; how long behind the instant at which the relay's rule is due
the other backend is asked for the last of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from relay_load import engine, peers, situations
from relay_load.load import Figures, Load, measure, put, typical
from relay_load.table import machine, table

STRAIGHT = "straight"
PARTS = ("steady", "starts", "bodies", "faults", "storm")
WARM = Load(streams=8, tokens=50, pace=0.0)


async def turns(load: Load, ports: dict[str, tuple[int, int | None]], repetitions: int) -> dict[str, Any]:
    """Put a load on each port in turn, so many times over; return figures and troubles by name."""
    many: dict[str, list[Figures]] = {name: [] for name in ports}
    troubles: dict[str, Counter[str]] = {name: Counter() for name in ports}
    for _ in range(repetitions):
        for name, (port, session) in ports.items():
            many[name].append(await measure(port, session, load, troubles[name]))
    by_name = {name: typical(each) for name, each in many.items()}
    return {
        **asdict(load),
        "by_name": by_name,
        "troubles": {name: dict(each) for name, each in troubles.items() if each},
    }


async def run(chosen: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Start everybody, measure them, and end them."""
    cores, on = sorted(os.sched_getaffinity(0)), machine()
    os.sched_setaffinity(0, {cores[0]})
    found: dict[str, Any] = {"machine": on, "versions": {}, "not_run": {}, "paced": [], "flat_out": {}}
    if {"steady", "starts", "bodies"} & set(chosen.parts):
        await one_backend(chosen, folder, cores[-1], found)
    if {"faults", "storm"} & set(chosen.parts):
        await two_backends(chosen, folder, cores[-1], found)
    return found


async def two_backends(chosen: argparse.Namespace, folder: Path, core: int, found: dict[str, Any]) -> None:
    """Measure what needs a second backend, and add it to what was found."""
    both = engine.Server(), engine.Server()
    servers = [await asyncio.start_server(one.serve, "127.0.0.1", 0, backlog=1024) for one in both]
    for backend in both:
        backend.goes_on.set()
    urls = [f"http://127.0.0.1:{one.sockets[0].getsockname()[1]}" for one in servers]
    port, web = peers.free_port(), peers.free_port()
    launched = {peers.RELAY: peers.relay_of(urls, port, folder, web, situations.RULES)}
    try:
        if "litellm" in chosen.peers and "faults" in chosen.parts:
            launched["litellm"] = peers.litellm_of(urls, peers.free_port(), folder)
    except peers.NotRunError as reason:
        found["not_run"]["litellm"] = str(reason)
    started = list[peers.Proxy]()
    try:
        for name, how in launched.items():
            try:
                started.append(await peers.start(name, how, core, folder))
                found["versions"][name] = started[-1].version
            except peers.NotRunError as reason:
                found["not_run"][name] = str(reason)
        ports: dict[str, situations.Where] = {one.name: (one.port, one.process.pid) for one in started}
        if "faults" in chosen.parts:
            found["faults"] = await situations.faults(both, ports, chosen.faults)
        if "storm" in chosen.parts and peers.RELAY in ports:
            found["storm"] = [await situations.storm(*both, port, web) for _ in range(chosen.repetitions)]
    finally:
        for one in started:
            one.stop()
        for server in servers:
            server.close()


async def one_backend(chosen: argparse.Namespace, folder: Path, core: int, found: dict[str, Any]) -> None:
    """Measure what needs one backend, and add it to what was found."""
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0, backlog=1024)
    backend = server.sockets[0].getsockname()[1]
    started: list[peers.Proxy] = []
    try:
        for name in (peers.RELAY, *chosen.peers):
            try:
                how = peers.launch(name, backend, folder)
                started.append(await peers.start(name, how, core, folder))
                found["versions"][name] = started[-1].version
            except peers.NotRunError as reason:
                found["not_run"][name] = str(reason)
        proxies: dict[str, tuple[int, int | None]] = {one.name: (one.port, one.process.pid) for one in started}
        everybody: dict[str, tuple[int, int | None]] = {STRAIGHT: (backend, None), **proxies}
        for port, _ in everybody.values():
            await put(port, WARM)
        if "starts" in chosen.parts:
            found["starts"] = await situations.starts(everybody, chosen.repetitions)
        if "bodies" in chosen.parts:
            found["bodies"] = await situations.bodies(everybody, chosen.repetitions)
        if "steady" not in chosen.parts:
            return
        found["flat_out"] = await turns(Load(16, chosen.flat_tokens, 0.0), everybody, chosen.repetitions)
        carried = {name: one["chunks_a_second"] for name, one in found["flat_out"]["by_name"].items()}
        for streams in chosen.streams:
            load = Load(streams, chosen.tokens, chosen.pace, chosen.replies)
            able = {name: where for name, where in proxies.items() if carried[name] > streams * chosen.pace}
            paced = await turns(load, {STRAIGHT: everybody[STRAIGHT], **able}, chosen.repetitions)
            straight = paced["by_name"][STRAIGHT]
            for name in able:
                one = paced["by_name"][name]
                one |= {f"added_{key}": one[key] - straight[key] for key in one if key.startswith(("first", "token"))}
            paced["beyond"] = {name: carried[name] for name in proxies if name not in able}
            found["paced"].append(paced)
    finally:
        for one in started:
            one.stop()
        server.close()


def _peers(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name == peers.RELAY or name not in peers.KNOWN:
            known = ", ".join(name for name in peers.KNOWN if name != peers.RELAY)
            raise argparse.ArgumentTypeError(f"{name!r} is no peer: known are {known}")
    return list(dict.fromkeys(names))


def _parts(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not set(names) <= set(PARTS):
        raise argparse.ArgumentTypeError(f"known are {', '.join(PARTS)}")
    return names


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=_peers, default=list(peers.PEERS), help="names, by commas; '' is none")
    parser.add_argument("--streams", type=int, nargs="+", default=[5, 50, 150], help="loads: streams at once")
    parser.add_argument("--pace", type=float, default=50.0, help="tokens a second and stream")
    parser.add_argument("--tokens", type=int, default=150, help="of a stream")
    parser.add_argument("--replies", type=int, default=2, help="streams of a client, one after another")
    parser.add_argument("--flat-tokens", type=int, default=1500, help="tokens of each of 16 streams, flat out")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--parts", type=_parts, default=["steady"], help=f"of {','.join(PARTS)}; by commas")
    parser.add_argument("--faults", type=int, default=20, help="streams of each fault")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(run(chosen, Path(folder)))
    print(table(found))
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
