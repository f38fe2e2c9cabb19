"""How many examples the random tests try, by hypothesis' profile: `pytest --hypothesis-profile=full`.

`quick` tries a quarter of the examples of `full`. Both try the same ones in each run, so that CI refuses a change only
for what the change does. `long`, which is run by hand, tries 25 times as many as `full`, different ones in each run.
Long seeded fuzzers, which draw from `random.Random`, take another seed from SEED.
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
            derandomize=name != "long",
            database=None,
        )
    settings.load_profile("quick")


def examples(usual: int) -> int:
    """Return how many examples to try; `usual` is their number in the profile `full`."""
    return max(min(usual, FEWEST), usual * settings().max_examples // PERCENT["full"])
