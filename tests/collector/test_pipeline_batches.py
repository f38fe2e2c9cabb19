"""What waits is taken in together: every sender gets its own answer, and the journal has what was acknowledged."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.collector.flow import flowing
from support.collector.journal_states import SlowDisk
from support.commands import wait_until
from support.core.core_spans import sent_segment
from support.otlp import export
from support.patience import WAIT_S

from otel_llm.collector import plain_mode
from otel_llm.collector.decoding import BACKGROUND_DECODE_BYTES, PartSizes
from otel_llm.collector.pipeline import Pipeline
from otel_llm.collector.receive.errors import BusyError
from otel_llm.collector.settings import Limits
from otel_llm.core.compiling import mode
from otel_llm.formats.io.journal_format import split
from otel_llm.formats.otlp import export_request as otlp
from otel_llm.formats.records import DecodeError
from otel_llm.journal.journal import FsyncPolicy
from otel_llm.journal.journal_errors import JournalError
from otel_llm.shared.clock import FakeClock
from otel_llm.shared.errors import UnavailableError

SENDERS = 12


def pipeline(
    folder: Path,
    disk: SlowDisk | None = None,
    fsync: FsyncPolicy = "never",
    limits: Limits | None = None,
    large_bytes: int = BACKGROUND_DECODE_BYTES,
) -> AbstractContextManager[Pipeline]:
    return flowing(folder, limits, PartSizes(background=large_bytes), fsync=fsync, fsync_call=disk)


def raw_of(sender: int) -> bytes:
    """Return an export of a few plain segments of a stream of the sender's own."""
    return export(*[sent_segment(seq, 0, request=sender + 1) for seq in range(1, 6)]).SerializeToString()


@contextmanager
def busy(flow: Pipeline) -> Iterator[None]:
    """Keep the evaluator's thread busy, so that exports wait."""
    began, go = threading.Event(), threading.Event()

    def work() -> bool:
        began.set()
        return go.wait(WAIT_S)

    requested = ThreadPoolExecutor(1).submit(flow.call, work, 60.0)
    assert began.wait(WAIT_S)
    try:
        yield
    finally:
        go.set()
        requested.result()


def waiting(flow: Pipeline, senders: ThreadPoolExecutor, raws: list[bytes]) -> list[Future[bytes]]:
    """Send them all; return once all of them wait."""
    answers = [senders.submit(flow.accept, raw) for raw in raws]
    wait_until("all wait", lambda: flow.counts()["queue"] == len(raws))
    return answers


@pytest.mark.parametrize("large_bytes", [2**20, 0])
def test_a_broken_one_among_many_is_reported_alone(tmp_path: Path, large_bytes: int) -> None:
    with pipeline(tmp_path, large_bytes=large_bytes) as flow, ThreadPoolExecutor(SENDERS + 1) as senders:
        with busy(flow):
            answers = waiting(flow, senders, [raw_of(sender) for sender in range(SENDERS)])
            broken = senders.submit(flow.accept, raw_of(99)[:-3])
            wait_until("the broken one was sent", lambda: broken.done() or flow.counts()["queue"] == SENDERS + 1)
        assert [answer.result(WAIT_S) for answer in answers] == [b""] * SENDERS
        with pytest.raises(DecodeError):
            broken.result(WAIT_S)
        counts = flow.call(flow.counts)
        assert counts["exports"] == counts["received_exports"] == SENDERS
        assert counts["segments"] == counts["received_spans"] == 5 * SENDERS
        assert counts.get("internal_errors", 0) == 0
    records = [record for path in sorted(tmp_path.glob("*.otlp")) for record in split(path.read_bytes())[0]]
    assert len(records) == SENDERS


@pytest.mark.parametrize("broken", [False, True])
def test_what_is_decoded_aside_when_the_collector_stops_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    reading, go, read_all = threading.Event(), threading.Event(), otlp.read_all

    def slowly(raws: Sequence[bytes], **rest: Any) -> Any:
        reading.set()
        assert go.wait(WAIT_S)
        return read_all(raws, **rest)

    monkeypatch.setattr(otlp, "read_all", slowly)
    with pipeline(tmp_path, large_bytes=0) as flow, ThreadPoolExecutor(2) as others:
        answer = others.submit(flow.accept, raw_of(0)[: -3 if broken else None])
        assert reading.wait(WAIT_S)
        stopped = others.submit(flow.stop)
        wait_until("it stops", lambda: flow.why_not_ready() is not None)
        go.set()
        if broken:
            with pytest.raises(DecodeError):
                answer.result(WAIT_S)
        else:
            assert answer.result(WAIT_S) == b""
        stopped.result(WAIT_S)
        assert flow.room.bytes == 0
        assert flow.counts().get("segments", 0) == (0 if broken else 5)


def test_what_did_not_last_is_not_counted_as_acknowledged(tmp_path: Path) -> None:
    disk = SlowDisk()
    with pipeline(tmp_path, disk, "always") as flow:
        flow.accept(raw_of(0))
        disk.error = OSError(5, "Input/output error")
        with pytest.raises(JournalError):
            flow.accept(raw_of(1))
        assert flow.call(flow.counts)["exports"] == 1
        disk.error = None


def test_beyond_the_limit_of_those_that_wait_senders_come_back(tmp_path: Path) -> None:
    with pipeline(tmp_path, limits=Limits(queued_exports=3)) as flow, ThreadPoolExecutor(4) as senders:
        with busy(flow):
            answers = waiting(flow, senders, [raw_of(sender) for sender in range(3)])
            with pytest.raises(BusyError, match="behind"):
                flow.accept(raw_of(3))
        assert [answer.result(WAIT_S) for answer in answers] == [b""] * 3
        assert flow.accept(raw_of(3)) == b""
        assert flow.call(flow.counts)["refused_export.behind"] == 1


def test_a_bug_in_decoding_is_reported_to_the_senders_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bug(*_: object, **__: object) -> object:
        raise ZeroDivisionError

    with pipeline(tmp_path) as flow:
        with monkeypatch.context() as patch:
            patch.setattr(otlp, "read_all", bug)
            with pytest.raises(ZeroDivisionError):
                flow.accept(raw_of(0))
        assert flow.accept(raw_of(1)) == b""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_nobody_waits_for_an_evaluator_that_is_gone(tmp_path: Path) -> None:
    with pipeline(tmp_path) as flow:
        flow.call_soon(sys.exit)
        with pytest.raises(UnavailableError, match="has stopped"):
            flow.accept(raw_of(0))
        wait_until("it is seen", lambda: flow.why_unhealthy() is not None)


@pytest.mark.parametrize("plain", [False, True])
def test_a_load_that_is_too_high_for_plain_mode_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, plain: bool
) -> None:
    with pipeline(tmp_path) as flow, ThreadPoolExecutor(SENDERS) as senders:
        flow.lag_warning = plain_mode.LagWarning(mode.CHOSEN if plain else None)
        assert isinstance(flow.clock, FakeClock)
        for sender, waited_ns in enumerate((plain_mode.BEHIND_NS, plain_mode.BEHIND_NS + 1, plain_mode.BEHIND_NS + 1)):
            with busy(flow):
                answers = waiting(flow, senders, [raw_of(sender)])
                flow.clock.at_ns += waited_ns
            assert answers[0].result(WAIT_S) == b""
            reported = [one.getMessage() for one in caplog.records if "plain mode" in one.getMessage()]
            assert len(reported) == (1 if plain and sender else 0)
