"""What the load client measures beside the truth, and how many chunks a second one core of it reads in time.

    python benchmarks/bench.py [--streams 50 200 400] [--pace 50] [--seconds 8]

A server of its own writes every token at a known instant (`bench_load/truth_server.py`); both clocks are the machine's
monotonic one. Each load is so many streams at a time at a pace. The figures of each request (TTFT, TBT, idle time,
fluidity-index by the class `chat`) are worked out twice, from the times that the client read and from those that the
server wrote; the table has the 99th percentile of the difference. "late" is that of the reads themselves.

The same load goes through a client as others are built (`bench_load/aiohttp_client.py`; vLLM uses aiohttp, too).
us/chunk is the processor time of the client. A client carries a load while 99 % of its reads are within 1 ms; the last
lines say up to how many chunks a second each did. Server and client have a core each if there are two; on a machine
that does other work the differences say little.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench_load.truth_comparison import OURS, Row, compared, ours, plan_of, truth_of, truth_server

from otel_llm.bench.client.learning import learn
from otel_llm.bench.client.target import Target
from otel_llm.bench.plan.prompts import Prompts, PromptSpec

if TYPE_CHECKING:
    from otel_llm.bench.plan.load_plan import LoadPlan

HERE = Path(__file__).parent
BOUND_MS = 1.0
OTHERS = "aiohttp"


def others(port: int, target: Target, spec: PromptSpec, plan: LoadPlan, core: int) -> Row:
    """Put the same load on by aiohttp."""
    prompts = Prompts(spec)
    assert plan.at_ns is not None
    rows = zip(range(plan.first_number, plan.first_number + len(plan)), plan.output_tokens, plan.at_ns, strict=True)
    requests = [(prompts.text(number, 16), int(tokens), int(at)) for number, tokens, at in rows]
    reported = json.dumps({"url": f"http://127.0.0.1:{port}{target.path}", "requests": requests})
    command = ["taskset", "-c", str(core), sys.executable, str(HERE / "bench_load" / "aiohttp_client.py")]
    done = subprocess.run(command, input=reported, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    commits = {prompt: found["start_ns"] + at for prompt, _, at in requests}
    chunks = sum(map(len, found["times"].values()))
    row = compared(OTHERS, plan, truth_of(port), found["times"], commits)
    return replace(row, us_a_chunk=found["cpu_s"] / chunks * 1e6)


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
