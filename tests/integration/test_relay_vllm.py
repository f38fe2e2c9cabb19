"""Two real vLLM behind the relay, one stopped in mid-stream: no reader gets a wrong token.

`OTEL_LLM_RELAY_STREAMS=200` makes it the long form, which is run by hand.
"""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.relay.process import relay
from support.relay.readers import Reply, read_all
from support.vllm_server import VllmServer

pytestmark = pytest.mark.vllm

STREAMS = int(os.environ.get("OTEL_LLM_RELAY_STREAMS", "20"))
APART_S = 0.02
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
  reader: {reading_speed: 400, deadline: {policy: reading, max_idle: 1s}}
"""
"""A fast reader: this model writes hundreds of tokens a second, and readers should come near the end of the text."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[VllmServer, VllmServer]]:
    folder = tmp_path_factory.mktemp("vllm")
    with VllmServer(folder / "a.log") as first, VllmServer(folder / "b.log") as second:
        yield first, second


def bodies(seed: int) -> list[dict[str, Any]]:
    """Return greedy requests of mixed lengths, chats and completions, some with ids and running usage."""
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
        body |= {"prompt": words} if number % 2 else {"messages": [{"role": "user", "content": words}]}
        found.append(body)
    return found


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def report(name: str, replies: list[Reply], moves: list[dict[str, Any]]) -> None:
    gaps = sorted(reply.gap_s for reply in replies)
    resumed = [one["gap_seconds"] for one in moves if one["outcome"] == "done"]
    print(
        f"{name}: longest wait p50 {statistics.median(gaps):.3f} s, most {gaps[-1]:.3f} s; {len(resumed)} moved", end=""
    )
    print(f", gap p50 {statistics.median(resumed):.3f} s, most {max(resumed):.3f} s" if resumed else "")


def test_readers_of_a_stopped_server_get_every_token(pair: tuple[VllmServer, VllmServer], tmp_path: Path) -> None:
    first, second = pair
    asked = bodies(1)
    undisturbed = read_all([second.url], asked, APART_S)
    assert all(reply.done and reply.finish == "length" for reply in undisturbed)
    (tmp_path / "rules.yaml").write_text(RULES)
    (tmp_path / "slo.yaml").write_text(SLO)
    decisions = tmp_path / "decisions.jsonl"
    files: list[str | Path] = ["--rules", tmp_path / "rules.yaml", "--slo", tmp_path / "slo.yaml"]
    settings = [*files, "--decisions", decisions]
    root = [f"a={first.url.removesuffix('/v1')}", f"b={second.url.removesuffix('/v1')}"]
    with relay("--backend", root[0], "--backend", root[1], *settings) as running:
        healthy = read_all([running.url + "/v1"], asked[:4], APART_S)
        assert [reply.content() for reply in healthy] == [reply.content() for reply in undisturbed[:4]]
        stopper = threading.Timer(random.uniform(0.1, 0.6), os.killpg, (first.group, signal.SIGSTOP))
        stopper.start()
        try:
            replies = read_all([running.url + "/v1"], asked, APART_S)
        finally:
            stopper.cancel()
            os.killpg(first.group, signal.SIGCONT)
    moves = [one for one in records(decisions) if one["action"] == "migrate"]
    report("stopped", replies, moves)
    for got, wanted in zip(replies, undisturbed, strict=True):
        assert not got.errors
        assert got.done
        assert got.content() == wanted.content()
        assert len(got.heads) == 1
    assert any(one["outcome"] == "done" for one in moves)
    assert {(one["from"], one["to"]) for one in moves if one["outcome"] == "done"} == {("a", "b")}
