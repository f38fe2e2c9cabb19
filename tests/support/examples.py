"""How many examples the random tests try, by hypothesis' profile: `pytest --hypothesis-profile=full`.

`quick` tries a quarter of the examples, the same ones in each run; `full` tries different examples in each run; `long`
tries 25 times as many, by hand. Long seeded fuzzers, which draw from `random.Random`, take another seed from SEED.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

PERCENT = {"quick": 25, "full": 100, "long": 2500}
FEWEST = 10
SEED = int(os.environ.get("SEED", "1"))


def register_profiles() -> None:
    """Register the profiles, and load `quick`. No example has a deadline: machines are noisy."""
    for name, percent in PERCENT.items():
        settings.register_profile(
            name,
            max_examples=percent,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
            derandomize=name == "quick",
            database=None,
        )
    settings.load_profile("quick")


def examples(usual: int) -> int:
    """Return how many examples to try; `usual` is their number in the profile `full`."""
    return max(min(usual, FEWEST), usual * settings().max_examples // PERCENT["full"])
