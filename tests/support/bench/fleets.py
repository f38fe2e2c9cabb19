"""A small simulated fleet whose capacity a long simulation knows."""

from __future__ import annotations

from pathlib import Path

from support.scheduling.scenarios import scenario

FLEET = """\
version: 1
profile: slow.yaml
fleet: {instances: 1}
workload:
  requests: 20000
  warmup: 60s
  arrivals: {poisson: 1}
  lengths: {input: {uniform: [1, 40]}, output: {uniform: [1, 20]}}
  feasible: false
  tiers:
  - {name: only, tpot: 22ms, ttft: 60ms, share: 1}
objective: {attainment: 0.9}
"""
PROFILE = """\
version: 1
model: m
accelerator: a
engine: e
kv_tokens: 4000
max_batch: 8
max_batched_tokens: 100
step_overhead: 1ms
request_overhead: 1ms
source: worked by hand
linear: {base: 10ms, per_decode: 2ms, per_kv_token: 10us, per_chunk_token: 100us}
"""


def fleet(folder: Path, text: str = FLEET) -> Path:
    """Write the scenario and its profile; return the scenario's path."""
    (folder / "slow.yaml").write_text(PROFILE)
    return scenario(folder, text)
