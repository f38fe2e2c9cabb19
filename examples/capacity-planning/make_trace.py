"""Write `trace.csv`: two minutes of made-up traffic in Azure's columns, with a burst in the second minute.

    python examples/capacity-planning/make_trace.py

Put your gateway's log in its place: the time of each request, its prompt tokens and its reply tokens.
"""

from __future__ import annotations

import csv
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

BEGIN = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
SECONDS = 120.0
RATE, BURST_RATE = 6.0, 14.0
"""Requests/s; the burst lasts from 70 s to 100 s."""


def main() -> None:
    draw = Random("capacity")
    rows = []
    at_s = 0.0
    while (at_s := at_s + draw.expovariate(BURST_RATE if 70 <= at_s < 100 else RATE)) < SECONDS:
        time = (BEGIN + timedelta(seconds=at_s)).strftime("%Y-%m-%d %H:%M:%S.%f")
        prompt, reply = draw.lognormvariate(7.2, 0.9), draw.lognormvariate(5.4, 0.7)
        rows.append((time, min(12_000, 1 + int(prompt)), min(2_000, 1 + int(reply))))
    with (Path(__file__).parent / "trace.csv").open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(("TIMESTAMP", "ContextTokens", "GeneratedTokens"))
        writer.writerows(rows)


if __name__ == "__main__":
    main()
