"""kill -9 at random moments under load: what was acknowledged is there, and nothing is counted or decided twice.

KILLS=100 is the long form (ten minutes), SEED another one.
"""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path

import pytest
from support.commands import wait_until
from support.integration.interop_compare import (
    audited,
    disturbed,
    given_up,
    missing_tokens,
    read_rows,
    repeated_decisions,
    repeated_windows,
    total_differences,
    window_differences,
)
from support.integration.interop_service import Service, finish, load, service

KILLS = int(os.environ.get("KILLS", "6"))
STOPS = 2
SEED = int(os.environ.get("SEED", "1"))
LATENESS_NS = 5_000_000_000
"""The audit's, by which it tells whose clock is wrong; long beside a restart, so that little is late."""
LOST_AFTER_NS = 10_000_000_000
OPTIONS = ("--window", "1s", "--lateness", "5s", "--lost-after", "10s")
CONFIG = "version: 1\njournal: {fsync: always, file_bytes: 262144, compress: true}\n"
"""Small files: kills meet closed, compressed and half-compressed ones too."""
UNDISTURBED_NS = 6_000_000_000
"""The load goes on this long after the last restart, and after the late data that it caused."""


def killed(running: Service, chance: random.Random) -> None:
    """Kill the collector at random moments and start it again at once; sometimes while it still starts."""
    for number in range(KILLS):
        time.sleep(chance.uniform(0, 2.5))
        running.kill()
        running.start()
        if number % 5 == 3:
            time.sleep(chance.uniform(0, 1.5))
            running.kill()
            running.start()
        running.wait_ready()


def stopped(running: Service, chance: random.Random) -> None:
    """Stop it as an update does, and start it again."""
    for _ in range(STOPS):
        time.sleep(chance.uniform(1, 2.5))
        running.stop()
        running.start()
        running.wait_ready()


@pytest.mark.alone
@pytest.mark.parametrize("interrupted", [killed, stopped])
def test_a_run_with_restarts_is_as_one_without(tmp_path: Path, interrupted: object) -> None:
    assert callable(interrupted)
    (tmp_path / "collect.yaml").write_text(CONFIG, encoding="utf-8")
    kept = tmp_path / "acknowledged.json"
    with (
        service(tmp_path, "--config", str(tmp_path / "collect.yaml"), *OPTIONS) as running,
        load(running.grpc, kept, "--leave", "--mean-s", "2", "--seed", str(SEED)) as senders,
    ):
        wait_until("streams are in flight", lambda: running.metric("otel_llm_collector_in_flight") > 0)
        interrupted(running, random.Random(SEED))
        enough_ns = time.time_ns() + LATENESS_NS + UNDISTURBED_NS
        wait_until("windows that no restart touched are closed", lambda: running.closed_until_ns() > enough_ns)
        finish(senders)
        wait_until("every stream is judged", lambda: running.metric("otel_llm_collector_in_flight") == 0)
        judged_ns = time.time_ns()
        rows, windows = audited(running.journal, tmp_path, "1s")
        # A lost stream ends, live, in the oldest window still open: often a later one than the audit's last.
        wait_until("every window is closed that was open then", lambda: running.closed_until_ns() > judged_ns)
        assert running.metric("otel_llm_collector_internal_errors_total") == 0
        running.stop()
    assert "Traceback" not in running.said(), running.said()

    acknowledged = json.loads(kept.read_text(encoding="utf-8"))
    assert all(sent == told for sent, told in acknowledged.values())
    assert missing_tokens(acknowledged, rows) == {}
    assert len(rows) == len(acknowledged)

    live = read_rows(running.windows)
    left_out = disturbed(running.journal, rows, LATENESS_NS, LOST_AFTER_NS)
    assert repeated_windows(live) == []
    assert window_differences(live, windows, left_out) == []
    assert total_differences(live, windows, given_up(running.journal, rows, LOST_AFTER_NS)) == []
    assert sum(not left_out.touches(row) for row in windows) > 20

    decisions = read_rows(running.decisions)
    assert decisions
    assert repeated_decisions(decisions) == []
