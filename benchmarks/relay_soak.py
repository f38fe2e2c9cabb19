"""A relay between failing backends and clients that vanish: is every request accounted for, and does nothing grow?

    python benchmarks/relay_soak.py [--seconds 300] [--clients 24] [--seed 1] [--faults 0.35]

Black box: a real `otel-llm relay` in front of three backends whose replies are a function of the request. A share of
the requests, `--faults`, meet a fault: refused, 429, 500, 503, a page, a redirect, nothing, a `Content-Length` that
lies, silence, slow prefill; in mid-stream a reset, an end without a finish, an abort, an error event, a stall,
malformed and over-long lines, malformed framing. Now and then a backend restarts, is unhealthy, or all are dead. A
rule moves streams that stall. A third of the clients vanish, some read slowly, a tenth of the requests are not owned.
Signed actions come all the time: pauses, moves, aborts, drains; some are forged, repeated, or about streams that are
gone.

At the end, at rest: each owned request has one request span and one end of its stream, with an outcome that agrees with
what its client got; `otel_llm_relay_requests_total` counts each request once; a reply that ended as whole is the
undisturbed one, a cut one its beginning and an error event; every action is counted once; every pause has ended, and is
on its request span; no stream is in flight, and no more files are open and no more tasks left than at the start but
for a few kept connections. Exit status 1 when something is not so. The memory is printed, and the longest gap of the
whole replies whose clients read at once.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # engines, clients and checks are those of the tests
from support.relay.soak import soak
from support.relay.soaked import HEAD, slope, table

SHOWN = 10
"""Problems that are printed."""


def main() -> int:
    """Run the soak; return 0 when all is as it must be."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=300.0)
    options.add_argument("--clients", type=int, default=24)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--faults", type=float, default=0.35, help="share of requests that meet a fault")
    given = options.parse_args()
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # backends whose client has left
    print(HEAD)
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(
            soak(
                Path(folder),
                given.seconds,
                given.clients,
                given.seed,
                lambda one: print(table(one), flush=True),
                given.faults,
            )
        )
    print(table(found.samples[-1]), "at rest")
    actions = {f"{verb} {result}": count for (verb, result), count in found.actions.items()}
    told: dict[str, dict[str, Any]] = {
        "replies": found.ends, "faults": found.faults, "moves": found.migrations, "pauses": found.pauses,
        "actions": actions,
    }  # fmt: skip
    for name, counts in told.items():
        print(f"{name}: " + ", ".join(f"{key} {value:.0f}" for key, value in sorted(counts.items())))
    gaps = sorted(found.gaps_s)
    shown = ", ".join(f"p{share} {gaps[len(gaps) * share // 100]:.3f} s" for share in (50, 90, 99))
    print(f"longest gap of {len(gaps)} whole replies: {shown}, most {gaps[-1]:.3f} s")
    print(f"memory: {slope(found.samples):+.2f} MiB a minute behind the first quarter")
    for problem in found.problems[:SHOWN]:
        print(problem)
    print("verdict:", f"{len(found.problems)} things are NOT as they must be" if found.problems else "as it must be")
    return 1 if found.problems else 0


if __name__ == "__main__":
    sys.exit(main())
