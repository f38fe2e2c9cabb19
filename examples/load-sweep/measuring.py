"""The real runs: rounds of step times, and the load sweep, against a vLLM on this machine's CPU."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import csv_rows
import levels
import load_server
import step_times
from load_clients import SHORT, Clients, Journal
from load_requests import poisson
from others import Others

import otel_llm
import otel_llm.audit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from load_requests import Request
    from step_model import Sample

LOADS: Final = (3.0, 0.5, 6.0, 1.5, 5.0, 1.0, 8.0, 2.0, 4.0)
"""Requests/s, in the order in which they are run: a slower hour of the machine does not fall on the high loads."""
SECONDS: Final = 20.0
SEED: Final = 1


class Run(NamedTuple):
    """One run of one load, a row of `runs.csv`; `kept` (0 or 1): that with the least of `others` is in `recorded/`.

    `others`: the share of the machine's processors that other programs used meanwhile, 0 to 1.
    """

    load: float
    number: int
    requests: int
    others: float
    kept: int


def measure(folder: Path, environment: Path, rounds: int, runs: int) -> None:
    """Measure step times in so many rounds, and the sweep as often; write `samples.csv`, `runs.csv`, `recorded/`."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        server, url = load_server.start(environment, Path(work) / "model", Path(work) / "server.log")
        journal = Journal()
        otel_llm.instrument(exporter=journal)
        try:
            with server:
                found: list[Sample] = []
                for number in range(1, rounds + 1):
                    file = _record(journal, url, Path(work), None)
                    found += step_times.samples(step_times.read(file), number)
                    print(f"round {number} of {rounds}: {len(found)} samples", flush=True)
                csv_rows.write(found, folder / "samples.csv")
                _sweep(journal, url, folder, runs, server.process.pid)
        finally:
            otel_llm.uninstrument()


def _sweep(journal: Journal, url: str, folder: Path, runs: int, session: int) -> None:
    table: list[Run] = []
    (folder / "recorded").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        for number in range(1, runs + 1):
            for load in LOADS:
                requests = poisson(load, SECONDS, SEED)
                watch = Others(session)
                began_s = time.monotonic()
                file = _record(journal, url, Path(work), requests)
                table.append(Run(load, number, len(requests), round(watch.share(), 4), 0))
                before = [one.others for one in table[:-1] if one.load == load]
                if not before or table[-1].others < min(before):
                    levels.keep(list(otel_llm.audit.load_streams(file)), folder / "recorded" / f"{load}.parquet")
                print(f"{table[-1]} in {time.monotonic() - began_s:.0f} s", flush=True)
    quietest = {load: min(one.others for one in table if one.load == load) for load in LOADS}
    csv_rows.write([one._replace(kept=int(one.others == quietest[one.load])) for one in table], folder / "runs.csv")


def _record(journal: Journal, url: str, work: Path, requests: Sequence[Request] | None) -> Path:
    """Run a round of step times, or requests at their times; return the recording."""

    async def clients() -> None:
        mine = Clients(url)
        await mine.together(2, SHORT, 4)
        journal.forget()
        await (step_times.run_round(mine) if requests is None else mine.arrive(requests))
        await mine.close()

    asyncio.run(clients())
    file = work / "recording.otlp.zst"
    journal.write(file)
    return file
