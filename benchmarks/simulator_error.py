"""What the simulator is worth: the same requests served by a real vLLM and simulated, and how far they are apart.

    make vllm-env && nice -n -15 python benchmarks/simulator_error.py --vllm [--hidden 256 --layers 6] [--json OUT]
    python benchmarks/simulator_error.py --url URL --model NAME --record
    python benchmarks/simulator_error.py --url URL --model NAME --profile FILE

With `--vllm` it starts a vLLM of this machine's CPU. A round records a ladder of so many requests at once, then serves
Poisson arrivals at shares of what the engine can carry, then the ladder again. A profile is fitted to both ladders with
`otel-llm profile fit`; the other requests, at the times at which they were sent and with their lengths, are simulated
with it. The errors are those of each request, |simulated / real - 1|: TTFT, ITL (the mean gap between the tokens of a
request) and E2E, measured at the client and, beside it, at the engine. `of means` compares the mean over all requests
of a run, as the public figures do: BLIS on GPUs, E2E 6.7 %, ITL 7.1 %, TTFT 17.6 %. Each load is served twice:
`served again` compares both, which is what the machine itself does not repeat.

With `--url` it is for a server that runs already, as on a GPU: first with `--record`, while the plugin sends to a
journal, which `otel-llm profile fit` reads; then with the profile. Prefix caching plays no part: prompts are random.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from simulator_error_parts import errors, load, page

from otel_llm.scheduling import load_profile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_llm.scheduling.profiles.profile import Profile

SATURATING = 500
"""Requests at once that tell what the engine can carry."""
WARM_S = 1.0


class Comparison:
    """Collects the errors of runs."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.rows: list[dict[str, Any]] = []
        self.points: dict[str, list[tuple[errors.Values, errors.Values]]] = {}

    def add(self, name: str, number: int, rate: float, profile: Profile, served: Sequence[load.Served]) -> None:
        """Simulate the requests of a run, by their sending, and compare."""
        self.points.setdefault(name, [])
        real, ours = errors.values_of(served), errors.values_of(errors.simulated(served, profile))
        self.points[name].append((real, ours))
        self._add(name, number, rate, real, ours)

    def repeat(self, name: str, number: int, rate: float, served: Sequence[Sequence[load.Served]]) -> None:
        """Compare a run with one of the same requests: what the machine itself does not repeat."""
        first, second = (errors.values_of(one) for one in served)
        self._add(name, number, rate, first, second)

    def _add(self, name: str, number: int, rate: float, real: errors.Values, ours: errors.Values) -> None:
        run = {
            "load": name,
            "round": number,
            "rate": rate,
            "requests": len(real["e2e"]),
            "load_average": load_average(),
        }
        self.rows.append(run | {"errors": errors.compare(real, ours)})

    def show(self) -> None:
        """Print the errors, and write what the options ask for."""
        title = self.options.title
        show("Runs", page.HEADINGS, page.cells(self.rows))
        headings = ("load", "figure", "runs", "error, median", "error, p90", "of means", "public best")
        show("Errors: the median run, with the least and the most", headings, page.summary(self.rows))
        if self.options.json:
            self.options.json.write_text(json.dumps({"title": title, "runs": self.rows}, indent=1), encoding="utf-8")
        if self.options.html:
            self.options.html.write_text(page.render(title, self.rows, self.points), encoding="utf-8")


def show(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    Console(width=160).print(table)


def load_average() -> float:
    """Return the load average of the last minute."""
    return float(Path("/proc/loadavg").read_text().split()[0])


def rates_of(options: argparse.Namespace, profile: Profile) -> dict[str, float]:
    """Return the requests/s of each share of what the engine can carry."""
    rng = Random(options.seed)
    most = errors.saturation(profile, [options.lengths.draw(rng) for _ in range(SATURATING)])
    return {f"{share:.0%}": share * most for share in options.shares}


def own_vllm(options: argparse.Namespace, folder: Path) -> None:
    """Start a vLLM, and compare round by round."""
    from simulator_error_parts.replica import Replica, served_at_the_engine

    comparison = Comparison(options)
    size = model_size(options)
    with Replica(folder, options.max_batch, options.max_batched_tokens, *size, *options.more) as replica:

        def climb(seed: int, seconds: float) -> None:
            rng = Random(seed)
            asyncio.run(load.ladder(replica.url, "tiny", options.lengths, options.levels, seconds, rng))

        climb(options.seed, WARM_S)
        replica.keep("warm")
        for number in range(1, options.rounds + 1):
            seed = options.seed + 100 * number
            climb(seed, options.ladder_s / 2)
            ladders = [replica.keep(f"ladder-{number}-a")]
            runs = []
            for name, rate in rates_of(options, replica.fit(f"first-{number}", ladders)).items():
                arguments = (replica.url, "tiny", options.lengths, rate, options.seconds)
                served = [asyncio.run(load.poisson(*arguments, Random(seed + 1)))]
                journal = replica.keep(f"run-{number}-{name}")
                served.append(asyncio.run(load.poisson(*arguments, Random(seed + 1))))
                replica.keep(f"again-{number}-{name}")
                runs.append((name, rate, served, journal))
            climb(seed + 2, options.ladder_s / 2)
            ladders.append(replica.keep(f"ladder-{number}-b"))
            profile = replica.fit(f"profile-{number}", ladders)
            for name, rate, served, journal in runs:
                comparison.add(f"{name} at the client", number, rate, profile, served[0])
                comparison.add(f"{name} at the engine", number, rate, profile, served_at_the_engine(journal))
                comparison.repeat(f"{name} served again", number, rate, served)
        replica.fit("profile", sorted(folder.glob("ladder-*.otlp")))
    comparison.show()


def model_size(options: argparse.Namespace) -> list[str]:
    """Return vLLM's arguments for a model of this size; none for the tiny one."""
    if not options.hidden:
        return []
    heads = options.hidden // 32
    size = {"hidden_size": options.hidden, "intermediate_size": 2 * options.hidden}
    size |= {"num_hidden_layers": options.layers, "num_attention_heads": heads}
    size |= {"num_key_value_heads": max(1, heads // 2)}
    return ["--load-format", "dummy", "--hf-overrides", json.dumps(size)]


def running_server(options: argparse.Namespace) -> None:
    """Send the ladder to a server, or compare it with a profile."""
    arguments = (options.url, options.model, options.lengths)
    if options.record:
        ladders = [
            asyncio.run(load.ladder(*arguments, options.levels, seconds, Random(options.seed)))
            for seconds in (WARM_S, options.ladder_s)
        ]
        print(f"{sum(map(len, ladders))} requests served; fit a profile to the journal that the plugin sent them to")
        return
    comparison = Comparison(options)
    profile = load_profile(options.profile)
    for number in range(1, options.rounds + 1):
        for name, rate in rates_of(options, profile).items():
            rng = Random(options.seed + 100 * number + 1)
            served = asyncio.run(load.poisson(*arguments, rate, options.seconds, rng))
            comparison.add(f"{name} at the client", number, rate, profile, served)
    comparison.show()


def range_of(value: str) -> tuple[int, int]:
    low, _, high = value.partition(":")
    return int(low), int(high)


def numbers(value: str) -> list[float]:
    return [float(one) for one in value.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", action="store_true", help="start a vLLM of this machine's CPU")
    parser.add_argument("--url", help="of a server that runs, which ends in /v1")
    parser.add_argument("--model", help="as the server calls it")
    parser.add_argument("--record", action="store_true", help="only send the load that a profile is fitted to")
    parser.add_argument("--profile", help="to simulate with")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15, help="of each run")
    parser.add_argument("--ladder-s", type=float, default=4, help="of each level of the ladder")
    parser.add_argument("--levels", type=numbers, default=[1, 2, 4, 8, 16, 24], help="requests at once on the ladder")
    parser.add_argument("--shares", type=numbers, default=[0.3, 0.6, 0.9], help="of what the engine can carry")
    parser.add_argument("--input", type=range_of, default=(4, 400), help="tokens of a prompt, LOW:HIGH")
    parser.add_argument("--output", type=range_of, default=(2, 100), help="tokens of a reply, LOW:HIGH")
    parser.add_argument("--max-batch", type=int, default=16)
    parser.add_argument("--max-batched-tokens", type=int, default=2048)
    parser.add_argument("--hidden", type=int, default=0, help="width of the model, a multiple of 32; 0: the tiny one")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="a folder for recordings, profiles and the server's log")
    parser.add_argument("--title", default="Simulated and real")
    parser.add_argument("--json", type=Path, metavar="OUT")
    parser.add_argument("--html", type=Path, metavar="OUT")
    parser.add_argument("more", nargs="*", help="options of vLLM, after --")
    options = parser.parse_args()
    options.levels = [int(one) for one in options.levels]
    options.lengths = load.Lengths(options.input, options.output)
    if options.vllm:
        with tempfile.TemporaryDirectory() as work:
            folder = options.keep or Path(work)
            folder.mkdir(parents=True, exist_ok=True)
            own_vllm(options, folder)
    elif options.url and options.model and (options.record or options.profile):
        running_server(options)
    else:
        parser.error("give --vllm, or --url and --model with --record or --profile")


if __name__ == "__main__":
    main()
