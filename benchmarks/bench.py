"""What the load client measures beside the truth, and how many chunks a second one core of it reads in time.

    python benchmarks/bench.py [--streams 50 200 400] [--pace 50] [--seconds 8]

A server of its own writes every token at a known instant (`bench_load/truth_server.py`); both clocks are the machine's
monotonic one. Each load is so many streams at a time at a pace. The figures of each request (TTFT, TBT, idle time,
fluidity-index by the class `chat`) are worked out twice, from the times that the client read and from those that the
server wrote; the table has the 99th percentile of the difference. "late" is that of the reads themselves.

The same load goes through a client as others are built (`bench_load/aiohttp_client.py`; vLLM uses aiohttp, too).
us/chunk is the processor time of the client. A client carries a load while 99 % of its reads are within 1 ms; the last
lines say up to how many chunks a second each did. Server and client have a core each where there are two; on a machine
that does other work the differences say little.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from otel_llm.bench.client.learning import Learned, learn
from otel_llm.bench.client.load_client import LoadClient
from otel_llm.bench.client.target import Target
from otel_llm.bench.plan.load_plan import LoadPlan
from otel_llm.bench.plan.prompts import Prompts, PromptSpec
from otel_llm.rules.files.slo_file import load_slo
from otel_llm.slo.request import judge

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
BOUND_MS = 1.0
OURS, OTHERS = "otel-llm bench", "aiohttp"


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


def others(port: int, target: Target, spec: PromptSpec, plan: LoadPlan, core: int) -> Row:
    """Put the same load on by aiohttp."""
    prompts = Prompts(spec)
    assert plan.at_ns is not None
    rows = zip(range(plan.first_number, plan.first_number + len(plan)), plan.output_tokens, plan.at_ns, strict=True)
    requests = [(prompts.text(number, 16), int(tokens), int(at)) for number, tokens, at in rows]
    told = json.dumps({"url": f"http://127.0.0.1:{port}{target.path}", "requests": requests})
    command = ["taskset", "-c", str(core), sys.executable, str(HERE / "bench_load" / "aiohttp_client.py")]
    done = subprocess.run(command, input=told, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    commits = {prompt: found["start_ns"] + at for prompt, _, at in requests}
    chunks = sum(map(len, found["times"].values()))
    row = compared(OTHERS, plan, truth_of(port), found["times"], commits)
    return replace(row, us_a_chunk=found["cpu_s"] / chunks * 1e6)


@contextmanager
def truth_server(pace: float, core: int) -> Iterator[int]:
    """Run the server on a core; yield its port."""
    server = subprocess.Popen(
        ["taskset", "-c", str(core), sys.executable, "-m", "bench_load.truth_server", str(pace)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])},
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


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[20, 100, 200, 300, 400, 600, 800])
    parser.add_argument("--pace", type=float, default=50.0, help="tokens a second of each stream")
    parser.add_argument("--seconds", type=float, default=6.0)
    chosen = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    rows: list[Row] = []
    with truth_server(chosen.pace, cores[0]) as port:
        target = Target.read(f"http://127.0.0.1:{port}", model="bench")
        spec = PromptSpec(1)
        learned = learn(target, spec)
        truth_of(port)
        print(
            f"{'client':<15}{'streams':>8}{'chunks/s':>10}{'valid':>7}{'us/chunk':>10}   99 % of the differences, ms:"
        )
        print(f"{'':<50}{'late':>9}{'TTFT':>9}{'TBT':>9}{'idle':>9}{'fluidity':>10}")
        number = 0
        for streams in chosen.streams:
            for put in (ours, others):
                plan, _ = plan_of(streams, chosen.seconds, chosen.pace, number)
                number += streams
                row = (
                    ours(port, target, learned, spec, plan, cores[-1])
                    if put is ours
                    else others(port, target, spec, plan, cores[-1])
                )
                rows.append(row)
                print(
                    f"{row.client:<15}{row.streams:>8}{row.chunks_s:>10,.0f}{row.valid:>7}{row.us_a_chunk:>10.1f}"
                    f"{row.late:>9.3f}{row.ttft:>9.3f}{row.tbt:>9.3f}{row.idle:>9.3f}{row.fluidity:>10.4f}",
                    flush=True,
                )
    for name in (OURS, OTHERS):
        carried = [row.chunks_s for row in rows if row.client == name and row.late <= BOUND_MS]
        words = f"up to {max(carried):,.0f} chunks/s" if carried else "at none of these loads"
        print(f"{name}: 99 % of the reads within {BOUND_MS:g} ms {words}")


if __name__ == "__main__":
    main()
