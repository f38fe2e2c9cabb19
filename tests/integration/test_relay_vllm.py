"""Real vLLM behind the relay: one of two stopped, slowed, drained or killed in mid-stream, or full of two classes.

No reader gets a wrong token. `OTEL_LLM_RELAY_ROUNDS=10 pytest -s` makes it the long form, which is run by hand: a round
is 20 streams and one stop, or one overload. It prints the readers' idle time in mid-reply, through the relay and
straight, how long the moves took, and what the higher class attains with `preempt` and without.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.commands import wait_until_equal
from support.integration.vllm_server import VllmServer
from support.otlp_receiver import HttpReceiver
from support.relay.process import Relay, relay
from support.relay.readers import Reply, read, read_all

from otel_llm.rules.files.slo_file import load_slo
from otel_llm.slo.classes import SloClass
from otel_llm.slo.request import judge

pytestmark = pytest.mark.alone

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
"""No reply of the tiny model calls it."""
STREAMS = int(os.environ.get("OTEL_LLM_RELAY_STREAMS", "20"))
ROUNDS = int(os.environ.get("OTEL_LLM_RELAY_ROUNDS", "1"))
APART_S = 0.02
STOPPED_S = 6.0
MOST_ROUNDS_MORE = 9
"""Rounds that are added while none has done what the test is about: a server beside other work hurries and stalls."""
RULES = """\
version: 1
groups:
- name: g
  scope: stream
  rules:
  - rule: ReaderRunsDry
    when: 'tokens_read > 0 && runway_seconds < 0.25 && gap_seconds > 0.3'
    actions:
    - migrate: {to: least_load, only_if: 'exact_resume'}
      mode: enforce
      ttl: 2s
      budget: {per_request: 3}
"""
SLO = """\
version: 1
default: reader
classes:
  reader: {reading_speed: 25, deadline: {policy: reading, max_idle: 1s}}
"""
"""A fast reader, who comes near the end of the text while a server is stopped."""


def bodies(seed: int) -> list[dict[str, Any]]:
    """Return greedy requests of mixed lengths, chats and completions, some with ids, running usage or logprobs."""
    chance = random.Random(seed)
    found = []
    for number in range(STREAMS):
        words = " ".join(
            chance.choice(["def", "return", "import", "self", "class", "héllo", "x", "="]) for _ in range(8)
        )
        body: dict[str, Any] = {
            "model": "tiny",
            "temperature": 0,
            "max_tokens": chance.randint(60, 400),
            "ignore_eos": True,
        }
        body["stream_options"] = {"include_usage": True, "continuous_usage_stats": number % 3 == 0}
        body["return_token_ids"] = number % 4 == 0
        if number % 8 == 2:
            body["logprobs"] = True
        body |= {"prompt": words} if number % 2 else {"messages": [{"role": "user", "content": words}]}
        if number % 4 == 0:
            body["tools"] = [TOOL]
        found.append(body)
    return found


@contextmanager
def stopped(server: VllmServer, after_s: float) -> Iterator[None]:
    """Stop a server after so many seconds, for STOPPED_S."""
    acts = [
        threading.Timer(after_s, os.killpg, (server.group, signal.SIGSTOP)),
        threading.Timer(after_s + STOPPED_S, os.killpg, (server.group, signal.SIGCONT)),
    ]
    for act in acts:
        act.start()
    try:
        yield
    finally:
        for act in acts:
            act.cancel()
        os.killpg(server.group, signal.SIGCONT)


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def moved(path: Path) -> list[dict[str, Any]]:
    """Return the records of migrations that were carried out."""
    return [one for one in records(path) if one["action"] == "migrate" and one["outcome"] == "done"]


def paused(path: Path) -> list[dict[str, Any]]:
    """Return the records of preemptions that were carried out."""
    return [one for one in records(path) if one["action"] == "preempt" and one["outcome"] == "done"]


def report(name: str, replies: Sequence[Reply], slo: SloClass) -> None:
    """Print how long readers waited in mid-reply, a text counted as one token, and how many replies were cut."""
    cut = [reply.errors for reply in replies if not reply.done]
    idle_s = []
    for reply in replies:
        if not reply.times_ns:
            continue
        verdict = judge(reply.times_ns, reply.begun_ns, reply.times_ns[-1], "completed", slo)
        idle_s.append((verdict.idle_decode_ns or 0) / 1e9)
    gaps_s = [reply.gap_s for reply in replies]
    print(f"{name}: idle_decode_s {quantiles(idle_s)}; longest gap {quantiles(gaps_s)}; {len(cut)} cut {cut[:1]}")


def quantiles(values: Sequence[float]) -> str:
    p50, p99 = np.percentile(values, (50, 99))
    return f"p50 {p50:.3f} p99 {p99:.3f} most {max(values):.3f} s of {len(values)}"


def events(spans: Sequence[Span], name: str) -> int:
    """Count the events of a name on the request spans."""
    return sum(event.name == name for span in spans for event in span.events)


def migrations(spans: Sequence[Span]) -> list[tuple[str, str, int]]:
    """Return from, to and tokens carried of the moves by a rule that the request spans tell of."""
    found = []
    for span in spans:
        for event in span.events:
            if event.name == "otel_llm.migrated":
                facts = {pair.key: pair.value for pair in event.attributes}
                if "rule" not in facts:  # a request that a second server got beside the stopped one
                    continue
                pair = facts["from"].string_value, facts["to"].string_value
                found.append((*pair, facts["tokens_carried"].int_value))
    return found


def test_readers_of_a_stopped_server_get_every_token(two_vllm: tuple[VllmServer, VllmServer], tmp_path: Path) -> None:
    first, second = two_vllm
    (tmp_path / "rules.yaml").write_text(RULES)
    (tmp_path / "slo.yaml").write_text(SLO)
    decisions = tmp_path / "decisions.jsonl"
    slo = load_slo(tmp_path / "slo.yaml").get("reader")
    files: list[str | Path] = ["--rules", tmp_path / "rules.yaml", "--slo", tmp_path / "slo.yaml"]
    root = [f"a={first.url.removesuffix('/v1')}", f"b={second.url.removesuffix('/v1')}"]
    chance, urls = random.Random(), [first.url, second.url]
    rounds = [bodies(seed) for seed in range(1, ROUNDS + 1)]
    undisturbed = [read_all([second.url], asked, APART_S) for asked in rounds]
    straight, relayed = [], []
    if ROUNDS > 1:
        report("straight, healthy", [one for asked in rounds for one in read_all(urls, asked, APART_S)], slo)
        for asked in rounds:
            with stopped(first, chance.uniform(0.1, 0.6)):
                straight += read_all(urls, asked, APART_S)
        report("straight, stopped", straight, slo)
    with HttpReceiver() as received:
        sent = {"OTEL_EXPORTER_OTLP_ENDPOINT": received.endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
        with relay(
            *("--backend", root[0], "--backend", root[1], *files, "--decisions", decisions), more=sent
        ) as running:
            healthy = [read_all([running.url + "/v1"], asked, APART_S) for asked in rounds]
            unneeded = len(records(decisions))
            # A stop that comes before the first tokens, or after the last, moves nothing: stop again.
            for turn in range(ROUNDS + MOST_ROUNDS_MORE):
                if turn >= ROUNDS and moved(decisions):
                    break
                with stopped(first, chance.uniform(0.1, 0.6)):
                    relayed += read_all([running.url + "/v1"], rounds[turn % ROUNDS], APART_S)
        spans = received.spans()
    report("relay, healthy", [reply for replies in healthy for reply in replies], slo)
    report("relay, stopped", relayed, slo)
    decided = [one for one in records(decisions) if one["action"] == "migrate"]
    moves = moved(decisions)
    assert moves, f"no stop hit a reply in mid-stream in {len(relayed) // STREAMS} rounds"
    print(f"{unneeded} decisions in the healthy run; {len(decided)} in all, {len(moves)} moved", end="; ")
    print(f"last text to new text {quantiles([one['gap_seconds'] for one in moves])}", end="; ")
    print(f"decision to new text {quantiles([one['gap_seconds'] - one['facts']['gap_seconds'] for one in moves])}")
    wanted = [reply for replies in undisturbed for reply in replies]
    for seen in ([reply for replies in healthy for reply in replies], relayed):
        assert len(seen) >= len(wanted)
        for got, whole in zip(seen, itertools.cycle(wanted), strict=False):
            assert not got.errors
            assert got.done
            assert got.content() == whole.content()
            assert len(got.heads) == 1
    assert sorted(migrations(spans)) == sorted((one["from"], one["to"], one["tokens_carried"]) for one in moves)


DRAINS = "version: 1\ndrain: {migrate: true}\n"
SLOW_S = 0.5, 0.1
"""How long a slow server is stopped, and runs, in turns."""


UNDER_WAY = 3
"""Streams of the server with text, of which some are in mid-reply when something happens to it."""

Act = Callable[[VllmServer, str, threading.Event], None]
"""Does something to the first backend of a relay until an event is set, and then undoes it."""


def frozen(server: VllmServer, _web: str, over: threading.Event) -> None:
    os.killpg(server.group, signal.SIGSTOP)
    over.wait(STOPPED_S)
    os.killpg(server.group, signal.SIGCONT)


def slowed(server: VllmServer, _web: str, over: threading.Event) -> None:
    while not over.wait(SLOW_S[1]):
        os.killpg(server.group, signal.SIGSTOP)
        over.wait(SLOW_S[0])
        os.killpg(server.group, signal.SIGCONT)


def drained(_server: VllmServer, web: str, over: threading.Event) -> None:
    def ask(what: str) -> None:
        headers = {"Content-Type": "application/json"}
        urllib.request.urlopen(urllib.request.Request(f"{web}/v1/backends/a/{what}", b"{}", headers)).read()

    ask("drain")
    over.wait()
    ask("undrain")


def killed(server: VllmServer, _web: str, over: threading.Event) -> None:
    server.kill()
    over.wait()
    server.start()


@contextmanager
def disturbed(act: Act, server: VllmServer, web: str) -> Iterator[None]:
    """Disturb the first backend of a relay once it serves some streams in mid-reply."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(0.02):
            rows = json.load(urllib.request.urlopen(web + "/v1/streams"))["streams"]
            if sum(one["instance"] == "a" and one["tokens"] > 5 for one in rows) >= UNDER_WAY:
                act(server, web, over)
                return

    acting = threading.Thread(target=run)
    acting.start()
    try:
        yield
    finally:
        over.set()
        acting.join()


@pytest.mark.parametrize("how", [frozen, slowed, drained, killed], ids=["frozen", "slowed", "drained", "killed"])
def test_every_stream_is_whole(two_vllm: tuple[VllmServer, VllmServer], tmp_path: Path, how: Act) -> None:
    name = getattr(how, "__name__", "")
    first, second = two_vllm
    (tmp_path / "rules.yaml").write_text(RULES)
    (tmp_path / "slo.yaml").write_text(SLO)
    (tmp_path / "relay.yaml").write_text(DRAINS)
    slo = load_slo(tmp_path / "slo.yaml").get("reader")
    asked = bodies(1)
    undisturbed = read_all([second.url], asked, APART_S)
    backends = ["--backend", f"a={first.url.removesuffix('/v1')}", "--backend", f"b={second.url.removesuffix('/v1')}"]
    files: list[str | Path] = ["--rules", tmp_path / "rules.yaml", "--slo", tmp_path / "slo.yaml"]
    replies, moved_on = list[Reply](), 0.0
    with relay(*backends, *files, "--config", tmp_path / "relay.yaml") as running:
        wait_until_equal("both continue chats from ids", lambda: continuing(running.web), [True, True])
        report(f"{name}: before", read_all([running.url + "/v1"], asked, APART_S), slo)
        for turn in range(ROUNDS + MOST_ROUNDS_MORE):
            if turn >= ROUNDS and moved_on:
                break
            with disturbed(how, first, running.web):
                replies += read_all([running.url + "/v1"], asked, APART_S)
            moved_on = done_moves(running.web)
    report(f"{name}: after", replies, slo)
    print(f"{name}: {moved_on:.0f} of {len(replies)} streams moved; load {os.getloadavg()[0]:.1f}")
    assert moved_on, f"no reply was hit in mid-stream in {len(replies) // STREAMS} rounds"
    for got, whole in zip(replies, itertools.cycle(undisturbed), strict=False):
        assert (got.errors, got.done, len(got.heads)) == ([], True, 1)
        assert got.content() == whole.content()


def continuing(web: str) -> list[bool | None]:
    """Return whether each backend of a relay continues chats from ids."""
    rows = json.load(urllib.request.urlopen(web + "/v1/backends"))["backends"]
    return [one["continues_chats"] for one in rows]


def done_moves(web: str) -> float:
    """Return how many moves of streams a relay has done, failovers too."""
    time.sleep(1.1)  # `/metrics` is rendered once a second
    lines = urllib.request.urlopen(web + "/metrics").read().decode().splitlines()
    found = [one for one in lines if one.startswith("otel_llm_relay_migrations_total") and 'outcome="done"' in one]
    return sum(float(one.rpartition(" ")[2]) for one in found)


OVERLOAD = """\
version: 1
groups:
- name: g
  scope: stream
  rules:
  - rule: CodeWaits
    when: 'slo_class == "code" && tokens_read == 0 && age_seconds > 0.15'
    actions:
    - preempt: {}
      mode: MODE
      ttl: 1s
      budget: {per_request: 1}
"""
TWO_CLASSES = """\
version: 1
default: chat
classes:
  chat: {reading_speed: 2, priority: 0, deadline: {policy: reading, max_idle: 1s}}
  code: {reading_speed: 20, priority: 10, deadline: {policy: reading, max_idle: 1s}}
"""
SEATS = 16
"""Requests that the server runs at once; the others wait for one of them to end."""
AHEAD_S = 5.0
"""The text that readers of chats are to have left; below 3 s none of them can be paused."""


def overload(seed: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return long chats that take all seats, and short requests that come while they run."""
    chance = random.Random(seed)

    def body(tokens: int) -> dict[str, Any]:
        words = " ".join(chance.choice(["def", "return", "héllo", "x", "="]) for _ in range(8))
        message = {"role": "user", "content": words}
        return {"model": "tiny", "temperature": 0, "max_tokens": tokens, "ignore_eos": True, "messages": [message]}

    return [body(430) for _ in range(SEATS)], [body(40) for _ in range(6)]


def read_overload(running: Relay, chats: Sequence[dict[str, Any]], codes: Sequence[dict[str, Any]]) -> list[Reply]:
    """Read chats at once; the others begin, one behind the other, once enough chats can be paused, or all are over."""
    url = running.url + "/v1"

    async def go() -> list[Reply]:
        async def chat(body: dict[str, Any]) -> Reply:
            return await read(session, url, body, headers={"x-slo-class": "chat"})

        async def ahead() -> int:
            """Return how many readers have text left, as the relay sees it, while the server runs all of them."""
            async with session.get(running.web + "/v1/streams") as response:
                rows = (await response.json())["streams"]
            return sum((one["runway_s"] or 0.0) > AHEAD_S for one in rows) if len(rows) == SEATS else 0

        async def code(body: dict[str, Any]) -> Reply:
            return await read(session, url, body, headers={"x-slo-class": "code"})

        timeout = aiohttp.ClientTimeout(total=240)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
            begun = [asyncio.create_task(chat(body)) for body in chats]
            while not all(one.done() for one in begun) and await ahead() < len(codes):
                await asyncio.sleep(0.05)
            for body in codes:
                begun.append(asyncio.create_task(code(body)))
                await asyncio.sleep(APART_S)
            return list(await asyncio.gather(*begun))

    return asyncio.run(go())


def attained(replies: Sequence[Reply], slo: SloClass) -> str:
    """Say how many readers of a class got what it promises, and how long the others waited."""
    verdicts = [judge(one.times_ns, one.begun_ns, one.times_ns[-1], "completed", slo) for one in replies]
    ttfts_s = [(one.times_ns[0] - one.begun_ns) / 1e9 for one in replies]
    idle_s = [(one.idle_decode_ns or 0) / 1e9 for one in verdicts]
    met = sum(bool(one.met) for one in verdicts)
    return f"{met} of {len(replies)} met; first text {quantiles(ttfts_s)}; idle in mid-reply {quantiles(idle_s)}"


def test_preempt_takes_from_readers_with_text_left(two_vllm: tuple[VllmServer, VllmServer], tmp_path: Path) -> None:
    server, _ = two_vllm
    (tmp_path / "slo.yaml").write_text(TWO_CLASSES)
    classes = load_slo(tmp_path / "slo.yaml")
    rounds = [overload(seed) for seed in range(1, ROUNDS + 1)]
    seen: dict[str, list[Reply]] = {}
    backend = f"a={server.url.removesuffix('/v1')}"
    for mode in ("shadow", "enforce"):
        rules, decisions = tmp_path / f"{mode}.yaml", tmp_path / f"{mode}.jsonl"
        rules.write_text(OVERLOAD.replace("MODE", mode))
        files: list[str | Path] = ["--rules", rules, "--slo", tmp_path / "slo.yaml", "--decisions", decisions]
        with HttpReceiver() as received:
            sent = {"OTEL_EXPORTER_OTLP_ENDPOINT": received.endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
            with relay("--backend", backend, *files, more=sent) as running:
                seen[mode] = []
                for turn in range(ROUNDS if mode == "shadow" else ROUNDS + MOST_ROUNDS_MORE):
                    # The seats may be free again before a short request has waited: overload it once more.
                    if turn >= ROUNDS and paused(decisions):
                        break
                    seen[mode] += read_overload(running, *rounds[turn % ROUNDS])
            spans = received.spans()
        assert [(reply.status, reply.errors) for reply in seen[mode] if not reply.done] == []
        whose = [number % (SEATS + 6) < SEATS for number in range(len(seen[mode]))]
        for name, is_chat in (("chat", True), ("code", False)):
            of_class = [one for one, chat in zip(seen[mode], whose, strict=True) if chat is is_chat]
            print(f"preempt in {mode}: {name}: {attained(of_class, classes.get(name))}")
        done = paused(decisions)
        print(f"preempt in {mode}: {len(done)} paused")
        assert len(done) == events(spans, "otel_llm.paused") == events(spans, "otel_llm.resumed")
        # A record may have no candidate: the relay looks again when it pauses one.
        assert {first["slo_class"] for one in done for first in one["candidates"][:1]} <= {"chat"}
    assert done, f"no short request had to wait in {len(seen['enforce']) // (SEATS + 6)} rounds"
    for got, whole in zip(seen["enforce"], itertools.cycle(seen["shadow"]), strict=False):
        assert not got.errors
        assert got.done
        assert got.content() == whole.content()
