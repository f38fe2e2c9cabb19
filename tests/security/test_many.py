"""As many of a thing as a sender likes: trace ids, alerts, files of the journal. What is kept of them has a bound."""

from __future__ import annotations

import gc
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.actions.alerting import T0, S, decision
from support.commands import wait_until
from support.core.core_cases import seen, take
from support.otlp import T0_NS, stream_spans

from otel_llm.actions.alerts.alerts import STATE_FILE, State, read_state, state_bytes, write_state
from otel_llm.actions.alerts.firing import Firing
from otel_llm.actions.alerts.places import MOST_ALERTS
from otel_llm.evaluate.registry import RegistryLimits
from otel_llm.evaluate.timers import Timeouts
from otel_llm.formats.io.bytestream import open_chunks
from otel_llm.formats.io.journal_format import frame
from otel_llm.journal import records as journal_read
from otel_llm.journal.journal import Journal
from otel_llm.journal.names import NS_PER_S, file_name
from otel_llm.journal.records import last_receipt_ns, records_since

ROUND = 1000
MS = 1_000_000
FILES = 2000


def test_finished_streams_of_ever_new_ids_take_no_more_memory() -> None:
    limits = RegistryLimits(tombstones=200)
    one = seen(limits=limits, timeouts=Timeouts(lateness_ns=S, lost_after_ns=5 * S))  # whose timer stays for so long
    held = []
    tracemalloc.start()
    try:
        for number in range(1, 4 * ROUND + 1):
            begin_ns = T0_NS + number * 20 * MS
            spans = stream_spans(
                [begin_ns + MS, begin_ns + 2 * MS], request=number, commit_ns=begin_ns, end_ns=begin_ns + 3 * MS,
            )  # fmt: skip
            take(one, number * 20 + 5, *spans)
            if number % ROUND == 0:
                assert len(one.rows) > ROUND - 100  # the others wait for what may come late
                for seen_so_far in (one.rows, one.verdicts, one.windows, one.decisions, one.metered):
                    seen_so_far.clear()
                one.evaluator.resume_point()  # as a checkpoint asks
                gc.collect()
                held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert len(one.evaluator.live) < 300
    # A row of 100 bytes for each of the ids in between would be 200 KB.
    assert held[3] - held[1] < 100_000, held


def test_ten_thousand_alerts_are_kept_and_no_more(tmp_path: Path) -> None:
    firing = Firing(5 * S, 900 * S)
    firing.begin((), None, T0)
    for number in range(MOST_ALERTS + 500):
        firing.take(decision(number, 1, instance=f"{number:05}" + "x" * 1019))
    assert (len(firing.alerts()), firing.places.left_out) == (MOST_ALERTS, 500)
    assert len(firing.poll(T0 + 4 * S)) == MOST_ALERTS
    state = state_bytes(State(T0, firing.alerts()))
    assert len(state) < MOST_ALERTS * 8192
    write_state(tmp_path, state)
    assert (tmp_path / STATE_FILE).stat().st_size == len(state)
    assert len(read_state(tmp_path).alerts) == MOST_ALERTS
    for number in range(MOST_ALERTS + 500):
        firing.take(decision(number, 10, "resolved", instance=f"{number:05}" + "x" * 1019))
    firing.poll(T0 + 20 * S)
    firing.poll(T0 + 2000 * S)
    assert not firing.alerts()
    firing.take(decision(1, 3000))
    assert len(firing.alerts()) == 1


@pytest.fixture
def many_files(tmp_path: Path) -> Path:
    """Return the folder of a journal of one record a file, a second after the other."""
    for number in range(FILES):
        named_ns = T0_NS + number * NS_PER_S
        (tmp_path / file_name(named_ns, number)).write_bytes(frame(b"", named_ns + 1))
    return tmp_path


def test_a_journal_of_many_files_is_opened_where_a_restart_needs_it(
    many_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Path] = []

    def watched(path: Path, skipped: Counter[str], **more: None) -> Iterator[bytes]:
        opened.append(path)
        return open_chunks(path, skipped, **more)

    monkeypatch.setattr(journal_read, "open_chunks", watched)
    since_ns = T0_NS + (FILES - 3) * NS_PER_S
    assert len(list(records_since(many_files, since_ns, Counter()))) == 3
    assert last_receipt_ns(many_files) == T0_NS + (FILES - 1) * NS_PER_S + 1
    assert len(opened) <= 6


def test_a_journal_of_many_files_is_brought_within_its_size(many_files: Path) -> None:
    with Journal(many_files, retain_bytes=4096, compress=False) as journal:
        assert journal.counts()["journal_files"] >= FILES
        journal.keep_from_ns = 2**63
        wait_until("the oldest are gone", lambda: journal.counts()["journal_folder_bytes"] <= 4096)
        assert journal.counts()["journal_files"] <= 4096 // len(frame(b"", T0_NS)) + 1
