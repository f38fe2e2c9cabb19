"""What stands in a journal is bounded as what is received: a bomb is skipped, named, left on disk; a restart says how
far it is."""

from __future__ import annotations

import logging
import threading
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.commands import wait_until
from support.core.dense_exports import TINY, tiny
from support.otlp import T0_NS, export, request_span, stream_spans
from support.patience import WAIT_S

from otel_llm import audit
from otel_llm.actions.sinks.console import Console
from otel_llm.collector.receive.listeners import Addresses
from otel_llm.collector.restart import LOG_EVERY_S, MOST_NOTES, Progress
from otel_llm.collector.service import Service
from otel_llm.collector.settings import JournalSettings, Limits, Settings
from otel_llm.evaluate.timers import Timeouts
from otel_llm.formats.io.journal_format import frame
from otel_llm.formats.otlp import export_request as otlp
from otel_llm.journal.names import file_name
from otel_llm.journal.records import read_since
from otel_llm.rules.files.load import load_rules
from otel_llm.rules.files.slo_file import load_slo
from otel_llm.shared.web.address import Address

LOCAL = Address("127.0.0.1", 0)
GOOD = export(*stream_spans([T0_NS + 1], end_ns=T0_NS + 2), request_span()).SerializeToString()


def journal(folder: Path, raws: list[bytes]) -> tuple[Path, list[int]]:
    """Write a journal of one file; return it, and where its records begin."""
    folder.mkdir()
    path = folder / file_name(T0_NS, 0)
    offsets, written = [], b""
    for number, raw in enumerate(raws):
        offsets.append(len(written))
        written += frame(raw, T0_NS + 10 + number)
    path.write_bytes(written)
    return path, offsets


@contextmanager
def service(folder: Path, limits: Limits | None = None) -> Iterator[Service]:
    made = Service(
        classes=load_slo(),
        rules=load_rules(()),
        settings=Settings(limits=limits or Limits(), journal=JournalSettings(fsync="never", compress=False)),
        journal_folder=folder,
        decisions_path=None,
        windows_path=None,
        at=Addresses(LOCAL, LOCAL, LOCAL),
        window_ns=10**10,
        timeouts=Timeouts(),
        console=Console(echo=lambda _: None, verdicts="none"),
        load=lambda: (load_slo(), load_rules(())),
    )
    try:
        yield made
    finally:
        made.stop()


def counts(made: Service) -> dict[str, int | float]:
    return made.pipeline.call(made.pipeline.counts)


@pytest.mark.parametrize("limits", [Limits(), Limits(message_bytes=1024)], ids=["default", "a lower setting"])
def test_a_bomb_in_the_journal_is_named_and_left_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, limits: Limits
) -> None:
    bombs = [tiny(kind, 100_000) for kind in TINY]
    path, offsets = journal(tmp_path / "journal", [GOOD, *bombs, GOOD * 20])
    before = path.read_bytes()
    with service(tmp_path / "journal", limits) as made:
        made.prepare()
        made.serve()
        found = counts(made)
    assert found["replayed"] == 2  # the setting bounds what is received, not what was acknowledged
    assert found["replay_skipped.undecodable"] == len(bombs)
    said = [record.getMessage() for record in caplog.records if "left out of the replay" in record.getMessage()]
    for offset in offsets[1:-1]:
        assert any(line.startswith(f"{path}: record at byte {offset}: more small or empty") for line in said)
    assert path.read_bytes() == before


def test_the_audit_skips_the_same(tmp_path: Path) -> None:
    path, offsets = journal(tmp_path / "journal", [GOOD, tiny("events", 100_000)])
    found = audit.load(path)
    assert found.skipped.counts == {"bad_record": 1}
    assert found.skipped.notes[0].startswith(f"{path}: record 2 at byte {offsets[1]}: more small or empty")


def test_records_that_are_left_out_are_named_up_to_a_bound(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    journal(tmp_path / "journal", [b"\xff"] * (MOST_NOTES + 5))
    with service(tmp_path / "journal") as made:
        made.prepare()
        made.serve()
        assert counts(made)["replay_skipped.undecodable"] == MOST_NOTES + 5
    assert sum("left out" in record.getMessage() for record in caplog.records) == MOST_NOTES


def ready(made: Service) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{made.listeners.web.address}/readyz", timeout=WAIT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_restart_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal(tmp_path / "journal", [GOOD] * 4)
    reading, go, read, records = threading.Event(), threading.Event(), otlp.read, Counter[str]()

    def slowly(raw: bytes, **rest: Any) -> Any:
        records["read"] += 1
        if records["read"] == 3:
            reading.set()
            assert go.wait(WAIT_S)
        return read(raw, **rest)

    monkeypatch.setattr(otlp, "read", slowly)
    with service(tmp_path / "journal") as made, ThreadPoolExecutor(1) as threads:
        preparing = threads.submit(made.prepare)
        try:
            assert reading.wait(WAIT_S)
            assert ready(made) == (503, "restarting: 0 of 0 MB of the journal read (50 %)\n")
            with urllib.request.urlopen(f"http://{made.listeners.web.address}/healthz", timeout=WAIT_S) as answer:
                assert answer.status == 200
        finally:
            go.set()
        preparing.result(WAIT_S)
        made.serve()
        wait_until("it is ready", lambda: ready(made) == (200, "ok\n"))
        assert counts(made)["replayed"] == 4


def test_it_says_so_in_the_log_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    now_s = [0.0]
    progress = Progress(now_s=lambda: now_s[0])
    for done in range(0, 101, 5):
        progress.at(done * 10**6, 100 * 10**6)
        now_s[0] += LOG_EVERY_S / 5
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    shares = ("25", "50", "75", "100")
    assert said == [f"otel-llm: restarting: {one} of 100 MB of the journal read ({one} %)" for one in shares]
    progress.done()
    assert progress.line is None


def test_how_far_the_reading_is_counts_the_bytes_on_disk(tmp_path: Path) -> None:
    path, offsets = journal(tmp_path / "journal", [GOOD] * 3)
    (path.with_name(file_name(T0_NS + 100, 1))).write_bytes(frame(GOOD, T0_NS + 101))
    found = list(read_since(tmp_path / "journal", 0, Counter()))
    sizes = [one.stat().st_size for one in sorted(path.parent.iterdir())]
    assert [one.read_bytes for one in found] == [*offsets, sizes[0]]
    assert {one.all_bytes for one in found} == {sum(sizes)}
