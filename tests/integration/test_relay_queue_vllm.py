"""Two real vLLM behind a relay that places by PolyServe in two tiers, or releases in an annealed order.

No reader gets another token than straight from the server. `pytest -s` prints how long requests waited in the queue,
and what each class attained: nothing is asserted of either, since the machine's load decides it. Who waits for which
server is tested with engines that keep their pace, in tests/relay/streams/test_polyserve.py.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.integration.vllm_server import VllmServer
from support.otlp_receiver import HttpReceiver
from support.relay.process import relay
from support.relay.readers import Reply, read, read_all

from otel_llm.rules.files.slo_file import load_slo
from otel_llm.slo.request import judge

pytestmark = pytest.mark.alone

APART_S = 0.02
SLO = """\
version: 1
default: patient
classes:
  quick: {reading_speed: 20, deadline: {policy: dslo, ttft: 20s, tpot: 100ms}}
  patient: {reading_speed: 20, deadline: {policy: ttft_tbt, ttft: 60s, tbt: 1s}}
"""
PROFILE = "cpu-tiny"
"""Fitted to this server."""
FULL = 16
"""Streams that it has at once."""
WAITING = 4


def bodies(count: int, tokens: int, seed: int) -> list[dict[str, Any]]:
    """Return greedy chats of so many tokens."""
    chance = random.Random(seed)
    words = ["def", "return", "import", "self", "class", "x", "="]
    return [
        {
            "model": "tiny",
            "temperature": 0,
            "max_tokens": tokens,
            "ignore_eos": True,
            "messages": [{"role": "user", "content": " ".join(chance.choice(words) for _ in range(8))}],
        }
        for _ in range(count)
    ]


def read_classes(url: str, asked: Sequence[tuple[str, dict[str, Any]]]) -> list[Reply]:
    """Read replies at once, each begun a little after the one before; the pairs are class and body."""

    async def one(session: aiohttp.ClientSession, number: int, slo: str, body: dict[str, Any]) -> Reply:
        await asyncio.sleep(number * APART_S)
        return await read(session, url, body, headers={"x-slo-class": slo})

    async def go() -> list[Reply]:
        timeout = aiohttp.ClientTimeout(total=240)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
            coming = (one(session, number, slo, body) for number, (slo, body) in enumerate(asked))
            return list(await asyncio.gather(*coming))

    return asyncio.run(go())


def facts(span: Span) -> dict[str, Any]:
    """Return the attributes of a span."""
    found = {}
    for pair in span.attributes:
        field = pair.value.WhichOneof("value")
        found[pair.key] = None if field is None else getattr(pair.value, field)
    return found


def requests(received: HttpReceiver) -> list[dict[str, Any]]:
    """Return the attributes of the relay's request spans."""
    found = [facts(span) for span in received.spans() if span.name != "otel_llm.segment"]
    return [one for one in found if "gen_ai.latency.time_in_queue" in one]


def report(
    name: str, replies: Sequence[Reply], asked: Sequence[tuple[str, Any]], slo: Path, waits: list[float]
) -> None:
    classes = load_slo(slo)
    for kind in classes.names:
        mine = [reply for reply, (of, _) in zip(replies, asked, strict=True) if of == kind]
        if mine:
            verdicts = [judge(r.times_ns, r.begun_ns, r.times_ns[-1], "completed", classes.get(kind)) for r in mine]
            print(f"{name}: {kind}: {sum(bool(one.met) for one in verdicts)} of {len(mine)} met")
    print(f"{name}: in the queue p50 {np.median(waits):.3f} s, most {max(waits):.3f} s of {len(waits)}")


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("polyserve", "placement: polyserve"),
        ("anneal", "queue: {in_flight: 4, order: anneal}"),
    ],
)
def test_two_tiers_on_two_servers(
    two_vllm: tuple[VllmServer, VllmServer], tmp_path: Path, name: str, policy: str
) -> None:
    (tmp_path / "slo.yaml").write_text(SLO)
    places = [server.url.removesuffix("/v1") for server in two_vllm]
    backends = "".join(f"  {of}: {{url: '{url}', profile: {PROFILE}}}\n" for of, url in zip("ab", places, strict=True))
    (tmp_path / "relay.yaml").write_text(f"version: 1\nbackends:\n{backends}{policy}\n")
    asked = [
        *(("patient", body) for body in bodies(2, 400, 1)),
        *(("quick", body) for body in bodies(FULL + WAITING, 300, 2)),
        *(("patient", body) for body in bodies(4, 100, 3)),
    ]
    undisturbed = read_all([two_vllm[0].url], [body for _, body in asked], 0.2)
    with HttpReceiver() as received:
        sent = {"OTEL_EXPORTER_OTLP_ENDPOINT": received.endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
        with relay("--config", tmp_path / "relay.yaml", "--slo", tmp_path / "slo.yaml", more=sent) as running:
            replies = read_classes(running.url + "/v1", asked)
        found = requests(received)
    assert [reply.errors for reply in replies] == [[] for _ in asked]
    assert all(reply.done for reply in replies)
    assert [reply.text for reply in replies] == [reply.text for reply in undisturbed]
    waits = [one["gen_ai.latency.time_in_queue"] for one in found]
    report(name, replies, asked, tmp_path / "slo.yaml", waits)
    assert len(found) == len(asked)
    assert all(one["otel_llm.relay.input_tokens_estimated"] > 0 for one in found)
