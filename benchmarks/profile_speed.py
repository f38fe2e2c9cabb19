"""How fast a profile says how long an iteration lasts, beside the floor: a method call of the same arguments.

    python benchmarks/profile_speed.py [--profile NAME ...]

All on one core in this process. `decodes`, `chunk`: ns a look-up, and times the floor, best of several runs, of drawn
iterations without and with a prefill chunk that were looked up before. `first`: the same, not looked up before, once.
`load`: the time to load the profile, once.
"""

from __future__ import annotations

import argparse
import random
import time

from otel_llm.scheduling.profiles import Profile, load_profile, shipped_profiles

LOOKUPS = 2_000
RUNS = 15
Iteration = tuple[int, int, int, int]


class Floor:
    """A profile that knows one length."""

    def iteration_ns(self, decodes: int, kv_tokens: int, chunk: int = 0, prior: int = 0) -> int:  # noqa: ARG002
        return 1


def drawn(profile: Profile, *, chunks: bool) -> list[Iteration]:
    chance = random.Random(1)
    found = []
    for _ in range(LOOKUPS):
        decodes = chance.randint(1, min(300, profile.max_batch))
        chunk = chance.randint(1, profile.max_batched_tokens) if chunks else 0
        found.append((decodes, chance.randint(decodes, profile.kv_tokens), chunk, chance.randint(0, 8192)))
    return found


def ns_each(profile: Profile | Floor, iterations: list[Iteration]) -> float:
    ask = profile.iteration_ns
    begun = time.perf_counter_ns()
    for decodes, kv_tokens, chunk, prior in iterations:
        ask(decodes, kv_tokens, chunk, prior)
    return (time.perf_counter_ns() - begun) / len(iterations)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", action="append", metavar="NAME", help="one that ships, or a file; all that ship")
    names = parser.parse_args().profile or shipped_profiles()
    print(f"{'profile':24} {'load ms':>8} {'':10} {'first ns':>10} {'ns':>8} {'x floor':>8}")
    for name in names:
        begun = time.perf_counter_ns()
        profile = load_profile(name)
        load_ms = (time.perf_counter_ns() - begun) / 1e6
        for what in ("decodes", "chunk"):
            iterations = drawn(profile, chunks=what == "chunk")
            first = ns_each(profile, iterations)
            best = min(ns_each(profile, iterations) for _ in range(RUNS))
            floor = min(ns_each(Floor(), iterations) for _ in range(RUNS))
            print(f"{name:24} {load_ms:8.1f} {what:10} {first:10,.0f} {best:8,.0f} {best / floor:8.1f}")


if __name__ == "__main__":
    main()
