"""The fluid token rate of a recorded run, beside the readable form of the arithmetic."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from support.bench.replies import exchanged, reply

from otel_llm.audit.load import load
from otel_llm.bench.client.target import Target
from otel_llm.bench.judging import first_token_targets, fluid_rate_of
from otel_llm.bench.recording.run_journal import RequestRecords, RunJournal
from otel_llm.rules.files.slo_file import load_slo
from otel_llm.shared.clock import FakeClock
from otel_llm.slo.classes import CONTENT
from otel_llm.slo.fluid.fluid_rate import fluid_tbt_ns, fluid_token_rate

TARGET = Target.read("http://127.0.0.1:8000", model="m")
GAPS = [[100, *[20 + place % 7 for place in range(30)]] for _ in range(40)] + [[100, 30, 900, 30, 30]]


def test_the_rate_is_that_of_the_known_times(tmp_path: Path) -> None:
    requests = [exchanged(reply(gaps), number) for number, gaps in enumerate(GAPS)]
    with RunJournal(tmp_path / "run", RequestRecords(TARGET, None, FakeClock())) as journal:
        for request in requests:
            journal.write(request)
    batches: list[pa.RecordBatch] = []
    classes = load_slo(None)
    load(tmp_path / "run", slo=classes, observe=batches.append)
    found = fluid_rate_of(batches, (CONTENT,))
    targets = [fluid_tbt_ns(request.times_ns) for request in requests]
    assert found == fluid_token_rate(one for one in targets if one is not None)
    assert found is not None
    assert found.tbt_ns == max(one for one in targets if one is not None)  # 99 % of 41 are all 41
    why = first_token_targets(batches, classes)
    assert isinstance(why, str)
    assert "0 requests with a known prompt" in why  # this server counts none


def test_a_run_without_replies_has_none() -> None:
    assert fluid_rate_of([], (CONTENT,)) is None


@pytest.mark.parametrize("gaps", [[100], []])
def test_replies_of_one_token_have_none(gaps: list[int], tmp_path: Path) -> None:
    with RunJournal(tmp_path / "run", RequestRecords(TARGET, None, FakeClock())) as journal:
        journal.write(exchanged(reply(gaps)))
    batches: list[pa.RecordBatch] = []
    load(tmp_path / "run", observe=batches.append)
    assert fluid_rate_of(batches, (CONTENT,)) is None
