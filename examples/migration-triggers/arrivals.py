"""A day of requests made of one recorded hour: the arrivals and lengths of a public trace, thinned by the clock.

The trace is Azure's conversation trace of 2023 (Azure/AzurePublicDataset, CC-BY-4.0: 19,366 requests in 58 minutes);
it has no token times. It is not part of this repository.
"""

from __future__ import annotations

import csv
import math
import random
from typing import TYPE_CHECKING, Final

from pacing import CACHE_TOKENS, MOST_RUNNING, Engine, Request, S, prefill_ns, step_ns

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

DAY_NS: Final = 24 * 3600 * S
BUSIEST_HOUR: Final = 14.0
LEAST: Final = 0.3
"""The load at night as a share of the busiest: an assumption, as is the cosine between them."""


def read_trace(file: Path) -> list[Request]:
    """Read the trace; arrivals in ns since its first."""
    found: list[tuple[int, int, int]] = []
    with file.open(newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            day_time, fraction = row["TIMESTAMP"].split(" ")[1].split(".")
            hours, minutes, seconds = (int(part) for part in day_time.split(":"))
            at_ns = ((hours * 60 + minutes) * 60 + seconds) * S + int(fraction.ljust(9, "0"))
            found.append((at_ns, int(row["ContextTokens"]), int(row["GeneratedTokens"])))
    start_ns = min(at_ns for at_ns, _, _ in found)
    return sorted(Request(at_ns - start_ns, prompt, output) for at_ns, prompt, output in found)


def capacity(trace: Sequence[Request], engine: Engine) -> float:
    """Return the requests per second that keep one engine busy all the time, its batch as large as it can be."""
    count = len(trace)
    context = sum(one.prompt + one.output / 2 for one in trace) / count
    batch = min(MOST_RUNNING, int(CACHE_TOKENS / context))
    decode_ns = sum(one.output - 1 for one in trace) / count * step_ns(batch, round(batch * context)) / batch
    taking_in_ns = sum(prefill_ns(one.prompt) for one in trace) / count if engine == "mixed" else 0.0
    return S / (decode_ns + taking_in_ns)


def load_at(at_ns: int) -> float:
    """Return the load at a time of day as a share of the busiest."""
    hour = at_ns / (3600 * S)
    return LEAST + (1 - LEAST) * (1 + math.cos(2 * math.pi * (hour - BUSIEST_HOUR) / 24)) / 2


def day(
    trace: Sequence[Request], busiest_per_s: float, seed: int, begin_ns: int = 0, end_ns: int = DAY_NS
) -> list[Request]:
    """Return the requests of a day, or of a part of it, in order of arrival.

    The trace is played end to end, as many times at once as are needed, each copy from another place; each request is
    kept by a coin, so that the rate follows the clock. The bursts within the minutes stay those of the trace.
    """
    draw = random.Random(seed)
    length_ns = trace[-1].at_ns + S
    copies = math.ceil(busiest_per_s * length_ns / (len(trace) * S))
    kept = busiest_per_s * length_ns / (len(trace) * S * copies)
    found: list[Request] = []
    for _ in range(copies):
        start_ns = begin_ns - draw.randrange(length_ns)
        while start_ns < end_ns:
            for one in trace:
                at_ns = start_ns + one.at_ns
                if begin_ns <= at_ns < end_ns and draw.random() < kept * load_at(at_ns):
                    found.append(Request(at_ns, one.prompt, one.output))
            start_ns += length_ns
    return sorted(found)
