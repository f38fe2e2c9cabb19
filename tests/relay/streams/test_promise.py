"""The promise of the relay: while one replica is healthy, every stream that can be resumed is whole.

`pytest -s --hypothesis-profile=full` prints the moves a stream and the longest gaps beside their bounds: figures for a
quiet machine, of one event loop with all of the engines and clients.
"""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.relay.fake_engine import EngineRequest, FakeEngine, Fault, FaultKind
from support.relay.rig import rig

CHAT: dict[str, Any] = {
    "model": "fake",
    "temperature": 0,
    "max_tokens": 30,
    "ignore_eos": True,
    "stream_options": {"include_usage": True},
}
RULES = """\
version: 1
groups:
- name: g
  scope: stream
  rules:
  - rule: Stalled
    when: 'tokens_read > 0 && gap_seconds > 0.05'
    actions:
    - migrate: {to: least_load, only_if: 'exact_resume'}
      mode: enforce
      budget: {per_request: 8, in_flight: 2}
"""
SETTINGS = """\
failover: {connect_retries: 3}
move: {start: 200ms}
health: {interval: 5s, timeout: 20s}
eject: {max_share: 0}
"""
THRESHOLD_S = 0.05
START_S = 0.2
BACK_OFF_S = 0.05
MOST_JITTER = 1.25
FIRST_TOKEN_S = 0.01
"""Of an engine of this test: a role and a token at its pace."""
SLACK_S = 0.02
BEFORE: list[FaultKind] = ["status", "reset", "slow_prefill"]
"""What a destination may do in place of its first token. A first one only refuses: who breaks two has one more try."""
BEHIND: list[FaultKind] = ["stall", "keep_alive", "reset", "end", "abort", "error", "bad_framing"]


class Luck:
    """The faults of all replicas but the healthy ones: each request draws its own."""

    def __init__(self, seed: int, share: float) -> None:
        self._random = random.Random(seed)
        self._share = share
        self.met = 0

    def fault_of(self, asked: EngineRequest) -> Fault | None:
        if self._random.random() >= self._share:
            return None
        self.met += 1
        first = "prompt" not in json.loads(asked.body)
        if self._random.random() < 0.5:
            status = self._random.choice((429, 500, 503))
            return Fault(self._random.choice(BEFORE[:1] if first else BEFORE), status=status)
        return Fault(self._random.choice(BEHIND), after=self._random.randint(3, 25), burst=self._random.random() < 0.3)


def bound_s(attempts: list[dict[str, Any]]) -> float:
    """Return the longest gap that the promise allows a stream with these attempts to move it."""
    found = THRESHOLD_S + FIRST_TOKEN_S + SLACK_S
    for number, one in enumerate(attempts):
        tried = one.get("detail", "").count(":") if one["outcome"] == "failed" else 1
        found += tried * START_S + min(1.0, BACK_OFF_S * 2**number) * MOST_JITTER
    return found


@given(
    seed=st.integers(0, 10**9),
    replicas=st.integers(2, 4),
    bad=st.integers(1, 3),
    share=st.sampled_from([0.3, 0.6, 1.0]),
    streams=st.integers(1, 8),
)
@example(seed=1, replicas=3, bad=2, share=1.0, streams=8)
@example(seed=2, replicas=3, bad=1, share=1.0, streams=8)
@example(seed=1929, replicas=4, bad=3, share=1.0, streams=5)  # comments behind the finish
@settings(max_examples=examples(24), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_stream_is_whole(
    tmp_path_factory: pytest.TempPathFactory, seed: int, replicas: int, bad: int, share: float, streams: int
) -> None:
    async def go() -> None:
        engines = [FakeEngine(rate=400) for _ in range(replicas)]
        bodies = [{**CHAT, "messages": [{"role": "user", "content": f"tell me {n}"}]} for n in range(streams)]
        folder = tmp_path_factory.mktemp("promise")
        async with rig(folder, *engines, rules=RULES, settings=SETTINGS) as running:
            undisturbed = [await running.direct(body) for body in bodies]
            luck = Luck(seed, share)
            for engine in engines[1 : bad + 1]:
                engine.fault_of = luck.fault_of
            replies = await asyncio.gather(*(running.read(body) for body in bodies))
            for reply, plain in zip(replies, undisturbed, strict=True):
                assert reply.errors == []
                assert reply.content() == plain.content()
                assert reply.done
                assert len(reply.heads) == 1
            attempts = [one for one in running.decisions() if one["action"] == "migrate" and "from" in one]
            assert all(one["outcome"] in ("done", "refuted", "failed") for one in attempts)
            by_stream = [
                [one for one in attempts if one["trace_id"] == name] for name in {a["trace_id"] for a in attempts}
            ]
            moves = sum(v for k, v in (await running.metrics()).items() if k.startswith("otel_llm_relay_migrations_t"))
            print(
                f"{min(bad, replicas - 1)} of {replicas} bad, share {share}: {moves / streams:.2f} moves a stream, "
                f"longest gap {max(reply.gap_s for reply in replies):.3f} s, "
                f"bound {max((bound_s(one) for one in by_stream), default=bound_s([])):.3f} s"
            )

    asyncio.run(go())
