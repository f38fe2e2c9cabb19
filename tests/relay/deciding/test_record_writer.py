"""Decision records written in a thread: in order, bounded, and a full disk is reported."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from support.patience import WAIT_S

from otel_llm.relay.deciding.record_writer import RecordWriter
from otel_llm.rules.decisions.files import DecisionFiles


class Slow(DecisionFiles):
    """Wait for a go before each write; fail if the record says so."""

    go = threading.Event()

    def write(self, record: Any) -> None:
        self.go.wait(WAIT_S)
        if record.get("full"):
            raise OSError(28, "No space left on device")
        super().write(record)


def test_records_are_written_in_order_and_failures_are_told(tmp_path: Path) -> None:
    problems: list[Exception] = []
    writer = RecordWriter(Slow(tmp_path / "d.jsonl"), problems.append, most=3)
    for record in ({"n": 1}, {"full": True}, {"n": 2}):
        writer.write(record)
    with pytest.raises(OSError, match="buffer"):
        writer.write({"n": 3})
    Slow.go.set()
    writer.close()
    assert [json.loads(line) for line in (tmp_path / "d.jsonl").read_text().splitlines()] == [{"n": 1}, {"n": 2}]
    assert [str(one) for one in problems] == ["[Errno 28] No space left on device"]
    with pytest.raises(OSError, match="stopped"):
        writer.write({"n": 4})
