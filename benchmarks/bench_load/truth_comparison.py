"""One load from a client on a server that keeps the truth: how far the client's times are from the writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from otel_llm.bench.client.load_client import LoadClient
from otel_llm.bench.plan.load_plan import LoadPlan
from otel_llm.bench.plan.prompts import Prompts, PromptSpec
from otel_llm.rules.files.slo_file import load_slo
from otel_llm.slo.request import judge

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_llm.bench.client.learning import Learned
    from otel_llm.bench.client.target import Target

OURS: Final = "otel-llm bench"
BENCHMARKS: Final = Path(__file__).parents[1]


@dataclass
class Row:
    """One client under one load; differences are the 99th percentiles, ms."""

    client: str
    streams: int
    chunks_s: float
    valid: str
    us_a_chunk: float
    late: float
    ttft: float
    tbt: float
    idle: float
    fluidity: float


def plan_of(streams: int, seconds: float, pace: float, first_number: int) -> tuple[LoadPlan, int]:
    """Return streams that begin within the first second, spread, and last for the rest; and their tokens."""
    tokens = max(2, int((seconds - 1) * pace))
    at_ns = (np.arange(streams) * (1e9 / streams)).astype(np.int64)
    lengths = np.full(streams, 16, np.int64), np.full(streams, tokens, np.int64)
    return LoadPlan(at_ns, *lengths, first_number), tokens


def compared(
    name: str, plan: LoadPlan, truth: dict[str, list[int]], read: dict[str, list[int]], commits: dict[str, int]
) -> Row:
    """Return the differences of all requests."""
    slo = load_slo(None).get("chat")
    late: list[int] = []
    ttft, tbt, idle, fluidity = [], [], [], []
    for prompt, times in read.items():
        wrote, commit = truth[prompt], commits[prompt]
        if len(times) != len(wrote):
            raise SystemExit(f"{name}: {len(times)} tokens of {len(wrote)} were read")
        late += (np.array(times) - np.array(wrote)).tolist()
        ours, theirs = (judge(one, commit, one[-1], "completed", slo) for one in (times, wrote))
        ttft.append(abs((ours.ttft_ns or 0) - (theirs.ttft_ns or 0)))
        tbt += np.abs(np.diff(times) - np.diff(wrote)).tolist()
        idle.append(abs((ours.idle_ns or 0) - (theirs.idle_ns or 0)))
        fluidity.append(
            abs(
                (ours.deadline_misses or 0) / (ours.deadlines or 1)
                - (theirs.deadline_misses or 0) / (theirs.deadlines or 1)
            )
        )
    ms = [float(np.percentile(one, 99)) / 1e6 for one in (late, ttft, tbt, idle)]
    span_s = (max(one[-1] for one in truth.values()) - min(one[0] for one in truth.values())) / 1e9
    rate = sum(map(len, truth.values())) / span_s
    return Row(name, len(plan), rate, "-", 0.0, ms[0], ms[1], ms[2], ms[3], float(np.percentile(fluidity, 99)))


def used_s(pid: int) -> float:
    """Return the processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def truth_of(port: int) -> dict[str, list[int]]:
    """Return what the server wrote since it was last asked."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/truth") as answer:
        found: dict[str, list[int]] = json.load(answer)
    return found


def ours(port: int, target: Target, learned: Learned, spec: PromptSpec, plan: LoadPlan, core: int) -> Row:
    """Put the load on by our client."""
    prompts = Prompts(spec)
    with LoadClient(target, learned, spec) as client:
        os.sched_setaffinity(client.pids[0], {core})
        before_s = used_s(client.pids[0])
        run = client.start(plan)
        while run.sending:
            run.step(0.1)
        run.drain()
        validity, cpu_s = run.validity(), used_s(client.pids[0]) - before_s
    text = {one.number: prompts.text(one.number, one.input_tokens) for one in run.requests}
    read = {text[one.number]: one.times_ns.tolist() for one in run.requests}
    row = compared(OURS, plan, truth_of(port), read, {text[one.number]: one.intended_ns for one in run.requests})
    chunks = sum(map(len, read.values()))
    return replace(row, valid="yes" if validity.valid else "no", us_a_chunk=cpu_s / chunks * 1e6)


@contextmanager
def truth_server(pace: float, core: int) -> Iterator[int]:
    """Run the server on a core; yield its port."""
    server = subprocess.Popen(
        ["taskset", "-c", str(core), sys.executable, "-m", "bench_load.truth_server", str(pace)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(BENCHMARKS), *sys.path])},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    try:
        yield int(server.stdout.readline())
    finally:
        server.kill()
        server.wait()
        server.stdout.close()
