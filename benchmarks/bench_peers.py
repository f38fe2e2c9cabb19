"""The load client beside AIPerf and vLLM's `bench serve`: their figures of one engine, and what one core carries.

    make vllm-env aiperf-env && python benchmarks/bench_peers.py [--streams 50 200 400] [--sweeps 3] [--json OUT]
    make vllm-env aiperf-env && python benchmarks/bench_peers.py --vllm [--rate 4] [--rounds 5] [--json OUT]

With `--vllm` all three put the same load on a real vLLM of this machine's CPU: constant arrivals, prompts and replies
of the same lengths. A round runs each once, in a drawn sequence. The table has the figures that a client states itself
and those that `otel-llm audit` finds in its result file; two clients agree if the ranges of their rounds overlap.

Without it each puts growing loads on the server of `bench.py`, which keeps the instant of every write: so many streams
of a token every 1 / pace seconds. Every process of a client has the same core (AIPerf: one worker and one record
processor beside its controller; `otel-llm bench`: its worker and the process that reads from it), the server another.
A second row of ours has the worker alone on its core, as in `bench.py`. The times are those of the clients' own result
files; AIPerf's are wall-clock times, compared by the distance of both clocks. The table has the 99th percentile of the
errors of reads, first tokens and gaps, in ms; a load is carried while those of reads and gaps are within a bound. A
client that failed has infinite errors. `nice -n -15` keeps other work of the machine from deciding the result.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from bench_peers_parts import clients, one_core, same_server


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", action="store_true", help="compare the figures on a real vLLM")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="OUT")
    same = parser.add_argument_group("with --vllm")
    same.add_argument("--rate", type=float, default=4.0, help="requests a second")
    same.add_argument("--requests", type=int, default=60, help="of a client in a round")
    same.add_argument("--input", type=int, default=64, help="tokens of a prompt")
    same.add_argument("--output", type=int, default=32, help="tokens of a reply")
    same.add_argument("--rounds", type=int, default=5)
    core = parser.add_argument_group("without")
    core.add_argument("--streams", type=int, nargs="+", default=[10, 20, 50, 100, 150, 200, 300, 400, 600, 800])
    core.add_argument("--pace", type=float, default=50.0, help="tokens a second of each stream")
    core.add_argument("--seconds", type=float, default=6.0)
    core.add_argument("--sweeps", type=int, default=1, help="times that all loads are put on; the table has medians")
    options = parser.parse_args()
    clients.check()
    if options.vllm:
        found = same_server.compare(options)
        text, values = same_server.page(found, options), same_server.as_json(found)
    else:
        rows = one_core.measure(options)
        text, values = one_core.page(rows), one_core.as_json(rows)
    print(f"\n{text}")
    if options.json:
        options.json.write_text(json.dumps(values, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
