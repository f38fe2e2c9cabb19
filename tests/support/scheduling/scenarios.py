"""Scenario files of tests."""

from __future__ import annotations

from pathlib import Path

PROFILE = """\
version: 1
model: m
accelerator: a
engine: e
kv_tokens: 1000
max_batch: 8
max_batched_tokens: 100
step_overhead: 5ns
request_overhead: 7ns
source: worked by hand
linear: {base: 100ns, per_decode: 10ns, per_kv_token: 1ns, per_chunk_token: 2ns}
"""

SCENARIO = """\
version: 1
profile: hand.yaml
fleet: {instances: 2}
workload:
  requests: 50
  arrivals: {poisson: 1000000}
  lengths: {input: {uniform: [1, 50]}, output: {uniform: [1, 20]}}
  tiers:
  - {name: fast, tpot: 200ns, ttft: [500ns, 1us], share: 0.5}
  - {name: slow, tpot: 1us, ttft: 2us, share: 0.5}
policy: {placement: least_load, order: fcfs}
"""


def scenario(folder: Path, text: str = SCENARIO) -> Path:
    """Write a scenario and its profile, on which an iteration lasts 100 + 10 B + KV + 2 chunk and 5 ns."""
    (folder / "hand.yaml").write_text(PROFILE)
    path = folder / "scenario.yaml"
    path.write_text(text)
    return path
