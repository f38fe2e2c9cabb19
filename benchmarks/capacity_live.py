"""Live capacity searches against a queue whose capacity is known: a paced server with slots.

    nice -n -10 python benchmarks/capacity_live.py [--searches 3] [--seed 1] [--slots 16] [--precision 0.15]

Each reply has two tokens and holds a slot for 0.19 s; the others wait in order of arrival. A reply is met if it waits
at most 0.095 s. The server's own part is measured first: how long a slot is held, by a closed loop that keeps all of
them busy, and the time to the first token without a wait. By the first, the capacity is that of a queue of so many
slots with a fixed service, simulated exactly (`capacity_parts/queue_source.py`); by the second, the target of the class
is set. Then `otel-llm capacity` searches, each time with another seed. On a busy machine its probes are not valid.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capacity_parts.queue_source import SlotQueue

from otel_llm import audit

if TYPE_CHECKING:
    from collections.abc import Iterator

HELD_S = 0.19
"""The first token of the model `healthy` after 0.15 s, the second 0.04 s later."""
PATIENCE = 0.5
"""Of HELD_S: the longest wait that is met."""
LOAD = ("--model", "healthy", "--input", "8", "--output", "2")
EDGE = 100
"""Replies at either end of the closed loop that do not count: then not all slots are busy."""


@contextmanager
def paced_server(slots: int) -> Iterator[str]:
    """Start the server, and give its URL."""
    command = [sys.executable, "-m", "otel_llm.demo.paced_server", "--port", "0", "--slots", str(slots)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().strip()
        finally:
            server.terminate()


def run(command: str, url: str, slo: Path, *more: str) -> dict[str, Any]:
    """Run `otel-llm bench` or `capacity`, and return what it says."""
    arguments = [sys.executable, "-m", "otel_llm.cli.main", command, url, *LOAD, "--slo", str(slo), *more]
    done = subprocess.run([*arguments, "--format", "json"], capture_output=True, text=True, check=False)
    if not done.stdout:
        raise SystemExit(f"{' '.join(arguments)}: {done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def write_slo(folder: Path, ttft_ms: float) -> Path:
    path = folder / "slo.yaml"
    deadline = f"{{policy: ttft_tbt, ttft: {ttft_ms:.1f}ms, tbt: 10s}}"
    path.write_text(f"version: 1\ndefault: queue\nclasses:\n  queue: {{reading_speed: 20, deadline: {deadline}}}\n")
    return path


def held_s(url: str, slots: int, slo: Path, folder: Path) -> float:
    """Return how long a reply holds its slot while all are busy, in s."""
    out = folder / "closed"
    run("bench", url, slo, "--concurrency", str(3 * slots), "--requests", "1500", "--warmup", "0s", "--out", str(out))
    frame = audit.load(str(out), slo=str(slo)).requests
    ends = sorted((frame["start_unix_nano"] / 1e9 + frame["e2e_s"]).astype(float))
    steady = ends[EDGE:-EDGE]
    return slots * (steady[-1] - steady[0]) / (len(steady) - 1)


def capacity_of(slots: int, service_s: float) -> float:
    """Return the rate at which 90 % wait at most PATIENCE, in requests/s."""
    queue = SlotQueue(slots, PATIENCE * HELD_S / service_s, 1.0)
    low, high = 0.1 * slots, 1.0 * slots
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if queue.attainment(middle, 2_000_000, 7) >= 0.9 else (low, middle)
    return math.sqrt(low * high) / service_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--searches", type=int, default=3, metavar="N")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    parser.add_argument("--slots", type=int, default=16, metavar="N")
    parser.add_argument("--precision", default="0.15", metavar="P")
    parser.add_argument("--budget", default="20000", metavar="N", help="requests of a search, or its time (10m)")
    parser.add_argument("--json", type=Path, metavar="OUT")
    given = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as name, paced_server(given.slots) as url:
        folder = Path(name)
        idle = run("bench", url, write_slo(folder, 1000), "--rate", "5", "--requests", "100", "--warmup", "0s")
        first_s = idle["classes"]["queue"]["client"]["ttft_p50_s"]
        service_s = held_s(url, given.slots, write_slo(folder, 1000), folder)
        truth = capacity_of(given.slots, service_s)
        print(f"a slot is held {service_s * 1e3:.1f} ms, the first token takes {first_s * 1e3:.1f} ms")
        print(f"the capacity is {truth:.2f} requests/s")
        slo = write_slo(folder, 1e3 * (first_s + PATIENCE * HELD_S))
        for seed in range(given.seed, given.seed + given.searches):
            options = ("--between", "4..256", "--precision", given.precision, "--budget", given.budget)
            one = run("capacity", url, slo, *options, "--seed", str(seed))
            low, high = one["capacity_low"], one["capacity_high"]
            holds = (low is None or low <= truth) and (high is None or truth <= high)
            sent, lasted = (sum(probe[of] for probe in one["probes"]) for of in ("requests", "seconds"))
            print(
                f"seed {seed}: {low} to {high}, {'holds' if holds else 'MISSES'} the truth,"
                f" {'decided' if one['decided'] else one['why']}, {sent} requests, {lasted:.0f} s"
            )
            found.append({"seed": seed, "truth": truth, "held_s": service_s, **one})
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
