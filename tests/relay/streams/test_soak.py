"""The short form of `benchmarks/relay_soak.py`: random faults and clients, and every request accounted for."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.relay.soak import soak


@pytest.mark.world
def test_every_request_is_accounted_for_and_nothing_is_left_open(tmp_path: Path) -> None:
    found = asyncio.run(soak(tmp_path, seconds=4.0, clients=12))
    assert found.problems == []
    assert found.ends["whole"] > 0
    assert found.ends["vanished"] > 0
    assert sum(found.faults.values()) > 0
    assert sum(found.pauses.values()) > 0
    assert found.asked > 0
