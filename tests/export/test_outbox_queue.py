"""The bounded queue: order, overflow, counted drops, one warning, flush and close; no caller waits for the network."""

from __future__ import annotations

import gc
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from opentelemetry import context
from opentelemetry.instrumentation.utils import is_instrumentation_enabled
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import SpanContext
from support.patience import WAIT_S

from otel_llm.export import threads as native
from otel_llm.export.delivery import Pause, SpanExporterDelivery
from otel_llm.export.outbox import BATCH, Outbox
from otel_llm.export.records import Origin, Record, Segment
from otel_llm.export.undelivered import MOST_STREAMS, Losses

ORIGIN = Origin(SpanContext(1, 2, is_remote=False), Resource({}))


def segment(number: int) -> Segment:
    return Segment(ORIGIN, number, 0, 0, [], None, {})


class Slow:
    """A delivery that a test holds up, makes fail, or lets pass."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.entered = threading.Event()
        self.batches: list[list[int]] = []
        self.answer: tuple[int, str] | Exception = (0, "")
        self.instrumented: list[bool] = []
        self.closed = 0
        self.forgotten = 0

    def deliver(self, batch: Sequence[Record], pause: Pause) -> tuple[int, str]:
        self.instrumented.append(is_instrumentation_enabled())
        self.entered.set()
        assert self.open.wait(WAIT_S)
        self.batches.append([record.span_id for record in batch if isinstance(record, Segment)])
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def close(self) -> None:
        self.closed += 1

    def forget(self) -> None:
        self.forgotten += 1

    @property
    def delivered(self) -> list[int]:
        return [number for batch in self.batches for number in batch]


def poll(condition: Callable[[], bool]) -> None:
    """Wait for a condition that another thread brings about."""
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.002)


@pytest.fixture
def slow() -> Slow:
    return Slow()


def test_records_arrive_in_order_in_batches(slow: Slow) -> None:
    outbox = Outbox(slow)
    outbox.put([segment(0)])
    assert slow.entered.wait(WAIT_S)  # the first one leaves at once, later ones leave together
    for i in range(1, 1001):
        outbox.put([segment(i)])
    outbox.put([])
    slow.open.set()
    assert outbox.flush(WAIT_S)
    assert slow.delivered == list(range(1001))
    assert [len(batch) for batch in slow.batches] == [1, BATCH, 1000 - BATCH]
    assert outbox.close(WAIT_S)
    assert slow.closed == 1


def test_what_is_urgent_or_much_does_not_wait_for_its_turn(slow: Slow) -> None:
    slow.open.set()
    outbox = Outbox(slow, spacing_s=3600.0)
    outbox.put([segment(0)])  # the first one has nothing to keep its distance from
    poll(lambda: slow.delivered == [0])
    outbox.put([segment(1)])
    outbox.put([segment(2)], urgent=True)
    poll(lambda: slow.delivered == [0, 1, 2])
    for i in range(BATCH):
        outbox.put([segment(i)])
    poll(lambda: len(slow.delivered) == 3 + BATCH)
    outbox.put([segment(9)])
    assert outbox.flush(WAIT_S)
    assert outbox.close(WAIT_S)


def test_an_endpoint_that_does_not_answer_costs_the_oldest_and_nobodys_time(
    slow: Slow, caplog: pytest.LogCaptureFixture
) -> None:
    outbox = Outbox(slow, capacity=10)
    outbox.put([segment(0)])
    assert slow.entered.wait(WAIT_S)
    for i in range(1, 101):
        outbox.put([segment(i)])
    assert outbox.dropped == 90
    assert not outbox.flush(0.01)
    slow.open.set()
    assert outbox.flush(WAIT_S)
    assert slow.delivered == [0, *range(91, 101)]
    warnings = [record for record in caplog.records if record.name == "otel_llm"]
    assert [record.levelno for record in warnings] == [logging.WARNING] * 2
    assert "the queue of 10 is full" in warnings[0].getMessage()
    assert warnings[1].getMessage() == "telemetry is delivered to the endpoint again; 90 segments of 1 stream are lost"
    outbox.close(WAIT_S)


@pytest.mark.parametrize("answer", [(1, "no room"), RuntimeError("no room")], ids=["refused", "raised"])
def test_what_could_not_be_delivered_is_counted_and_the_next_batch_gets_its_chance(
    answer: Any, slow: Slow, caplog: pytest.LogCaptureFixture
) -> None:
    slow.open.set()
    slow.answer = answer
    outbox = Outbox(slow)
    for i in range(3):
        outbox.put([segment(i)])
        assert outbox.flush(WAIT_S)
    assert (outbox.dropped, len(slow.batches)) == (3, 3)
    [warning] = [record.getMessage() for record in caplog.records if record.name == "otel_llm"]
    assert warning.startswith("1 segment of 1 stream could not be sent to the endpoint (")
    assert "no room" in warning
    slow.answer = (0, "")
    outbox.put([segment(9)])
    assert outbox.close(WAIT_S)
    assert outbox.dropped == 3


def test_exports_are_not_traced(slow: Slow) -> None:
    slow.open.set()
    outbox = Outbox(slow)
    before = context.get_current()
    outbox.put([segment(1)])
    assert outbox.close(WAIT_S)
    assert slow.instrumented == [False]
    assert context.get_current() == before


def test_a_closed_outbox_takes_what_comes_without_a_word(slow: Slow) -> None:
    slow.open.set()
    outbox = Outbox(slow)
    outbox.put([segment(1)])
    assert outbox.close(WAIT_S)
    outbox.put([segment(2)])
    assert slow.delivered == [1]


def test_a_child_process_starts_clean(slow: Slow) -> None:
    outbox = Outbox(slow)
    outbox.put([segment(1)])
    assert slow.entered.wait(WAIT_S)
    outbox.put([segment(2)])
    child = os.fork()
    if not child:  # here the thread that waits inside the delivery is no more
        delivered = None
        try:
            outbox.after_fork()
            outbox.put([segment(3)])
            slow.open.set()
            delivered = outbox.flush(WAIT_S) and (slow.forgotten, slow.delivered)
        finally:
            os._exit(0 if delivered == (1, [3]) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    slow.open.set()
    assert outbox.close(WAIT_S)
    assert (slow.forgotten, slow.delivered) == (0, [1, 2])


class Failing:
    """A delivery that waits for better times, as one whose endpoint is away."""

    def __init__(self) -> None:
        self.attempts = 0

    def deliver(self, batch: Sequence[Record], pause: Pause) -> tuple[int, str]:
        self.attempts += 1
        while pause(3600.0, "away"):
            self.attempts += 1
        return len(batch), "away"

    def close(self) -> None:
        pass

    def forget(self) -> None:
        pass


def test_a_flush_without_patience_waits_for_one_attempt() -> None:
    delivery = Failing()
    outbox = Outbox(delivery)
    outbox.put([segment(1)])
    poll(lambda: delivery.attempts == 1)
    assert not outbox.flush(3600.0, patient=False)  # it is tried once more, and then left queued
    poll(lambda: delivery.attempts == 2)
    assert outbox.dropped == 0
    assert outbox.close(WAIT_S)
    assert (delivery.attempts, outbox.dropped) == (2, 1)


class Exporter(SpanExporter):
    """An application's exporter that gives the result that a test sets."""

    def __init__(self, result: SpanExportResult) -> None:
        self.result = result
        self.names: list[str] = []
        self.flushed = 0

    def export(self, spans: Any) -> SpanExportResult:
        self.names += [span.name for span in spans]
        return self.result

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        self.flushed += 1
        return True

    def shutdown(self) -> None:
        raise AssertionError("it is not ours to shut down")


@pytest.mark.parametrize(("result", "dropped"), [(SpanExportResult.SUCCESS, 0), (SpanExportResult.FAILURE, 1)])
def test_an_exporter_of_the_application_takes_spans(result: SpanExportResult, dropped: int) -> None:
    exporter = Exporter(result)
    outbox = Outbox(SpanExporterDelivery(exporter))
    outbox.put([segment(1)])
    assert outbox.close(WAIT_S)
    assert (exporter.names, outbox.dropped, exporter.flushed) == (["otel_llm.segment"], dropped, 1)


class Cycle:
    """An object of the host that is only ever collected, and sends something as it goes."""

    def __init__(self, outbox: Outbox) -> None:
        self.me = self
        self.outbox = outbox

    def __del__(self) -> None:
        self.outbox.put([segment(9)])


class Collecting(list[Record]):
    """Records that are queued, under the lock, while the garbage collector runs."""

    def __iter__(self) -> Iterator[Record]:
        gc.collect()
        return super().__iter__()


def test_what_the_garbage_collector_ends_may_send_while_something_is_sent(slow: Slow) -> None:
    slow.open.set()
    outbox = Outbox(slow)
    Cycle(outbox)
    done = threading.Event()

    def put() -> None:
        outbox.put(Collecting([segment(1)]))
        done.set()

    threading.Thread(target=put, daemon=True).start()
    assert done.wait(WAIT_S)
    assert outbox.close(WAIT_S)
    assert sorted(slow.delivered) == [1, 9]


def test_a_thread_that_cannot_start_is_tried_again(slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    slow.open.set()
    outbox = Outbox(slow)

    def none_left(run: Callable[[], None]) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(native, "start", none_left)
        with pytest.raises(RuntimeError):
            outbox.put([segment(1)])
        assert not outbox.flush(WAIT_S)  # there is nothing to wait for
    outbox.put([segment(2)])
    assert outbox.close(WAIT_S)
    assert slow.delivered == [1, 2]


def words(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "otel_llm"]


class Away:
    """A delivery that a test lets fail, wait and succeed; the minute of the log passes when the test says so."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.attempts: list[tuple[int, str] | None] = []
        """What the next batches meet: None succeeds after a failed attempt."""
        self.where: list[str] = []

    def deliver(self, batch: Sequence[Record], pause: Pause) -> tuple[int, str]:
        answer = self.attempts.pop(0) if self.attempts else (0, "")
        if answer is None:
            pause(0.0, "away")
            return 0, ""
        return answer

    def close(self) -> None:
        pass

    def forget(self) -> None:
        pass


@pytest.fixture
def away() -> Away:
    return Away()


def send(outbox: Outbox, away: Away, *answers: tuple[int, str] | None) -> None:
    """Send one segment for each answer."""
    for number, answer in enumerate(answers):
        away.attempts = [answer]
        outbox.put([segment(number)])
        assert outbox.flush(WAIT_S)


def test_an_outage_its_losses_and_its_end_are_a_line_each(away: Away, caplog: pytest.LogCaptureFixture) -> None:
    outbox = Outbox(away, where="http://there", clock_s=lambda: away.now_s)
    late = "telemetry is late (away): trying again for up to 120 s to send it to http://there"
    send(outbox, away, (0, ""), None, (0, ""))
    assert words(caplog) == [late, "telemetry is delivered to http://there again"]
    caplog.clear()
    away.now_s += 60
    send(outbox, away, (1, "gone"), (1, "gone"), (0, ""), (0, ""))
    assert words(caplog) == [
        "1 segment of 1 stream could not be sent to http://there (gone); later ones are only counted",
        "telemetry is delivered to http://there again; 2 segments of 1 stream are lost",
    ]
    assert (outbox.undelivered(), outbox.dropped) == ([], 2)
    assert outbox.close(WAIT_S)


def test_an_endpoint_that_comes_and_goes_is_a_line_of_each_kind_a_minute(
    away: Away, caplog: pytest.LogCaptureFixture
) -> None:
    outbox = Outbox(away, where="there", clock_s=lambda: away.now_s)
    send(outbox, away, *[None, (0, ""), (1, "gone"), (0, "")] * 50)
    assert [one.split(" (")[0].split(";")[0] for one in words(caplog)] == [
        "telemetry is late",
        "telemetry is delivered to there again",
        "1 segment of 1 stream could not be sent to there",
        "telemetry is delivered to there again",
    ]
    [missed] = outbox.undelivered()  # of the outages since then, which no line has said
    assert missed.losses.segments == outbox.dropped - 1
    caplog.clear()
    away.now_s += 60
    send(outbox, away, (0, ""))
    [again] = words(caplog)
    assert again == "telemetry is delivered to there again; 49 segments of 1 stream are lost"
    assert outbox.undelivered() == []
    assert outbox.close(WAIT_S)


def test_what_a_process_leaves_behind_is_counted_by_streams(slow: Slow) -> None:
    outbox = Outbox(slow, where="http://there")
    parents = [Origin(SpanContext(1, span, is_remote=False), Resource({})) for span in (5, 6)]
    outbox.put([Segment(parents[0], 1, 0, 0, [], None, {})])
    assert slow.entered.wait(WAIT_S)  # on its way, and never answered
    outbox.put(
        [
            Segment(parents[number], 1, 0, 0, [], None, {"otel_llm.choice": choice})
            for number, choice in ((0, 0), (0, 1), (1, 0), (1, 0))
        ]
    )
    assert not outbox.close(0.0)
    [missed] = outbox.undelivered()
    assert str(missed).startswith("5 segments of 3 streams were not delivered to http://there, since 2")
    assert str(missed).endswith("Z (no answer)")
    slow.open.set()
    poll(lambda: outbox.undelivered() == [])


def test_streams_beyond_a_number_are_not_told_apart() -> None:
    losses = Losses()
    for span in range(MOST_STREAMS + 5):
        losses.add([Segment(Origin(SpanContext(1, span, is_remote=False), Resource({})), 1, 0, 0, [], None, {})])
    assert str(losses) == f"{MOST_STREAMS + 5} segments of {MOST_STREAMS} streams or more"
