"""One queue for each collector: a trace keeps to one, a collector that is away costs its own records and no time."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import SpanContext
from support.otlp_receiver import GrpcReceiver, HttpReceiver
from support.patience import WAIT_S
from support.ports import free_ports

from otel_llm.export.delivery import Pause
from otel_llm.export.endpoints import ENDPOINTS_VARIABLE, listed_settings
from otel_llm.export.outbox import Outbox
from otel_llm.export.records import Origin, Record, RequestRecord, Segment
from otel_llm.export.routing import Rendezvous, RoutedOutbox, outbox_for

NAMES = ("a", "b", "c")
IDS = range(1, 40)
RESOURCE = Resource({})


def owner(trace_id: int) -> str:
    return Rendezvous(NAMES).choose(trace_id)


def ids_of(name: str) -> list[int]:
    return [trace_id for trace_id in IDS if owner(trace_id) == name]


def segment(trace_id: int, number: int = 0) -> Segment:
    return Segment(Origin(SpanContext(trace_id, 2, is_remote=False), RESOURCE), number, 4, 5, [], None, {})


def request(trace_id: int) -> RequestRecord:
    return RequestRecord(SpanContext(trace_id, 2, is_remote=False), None, RESOURCE, "chat m", 4, 5, {}, None)


class Gated:
    """A delivery that waits for its gate, and keeps what passed."""

    def __init__(self, *, gate_open: bool = True) -> None:
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.delivered: list[Record] = []
        self.closed = 0
        self.forgotten = 0
        if gate_open:
            self.gate.set()

    def deliver(self, batch: Sequence[Record], pause: Pause) -> tuple[int, str]:
        self.entered.set()
        assert self.gate.wait(WAIT_S)
        self.delivered += batch
        return 0, ""

    def close(self) -> None:
        self.closed += 1

    def forget(self) -> None:
        self.forgotten += 1


def routed(deliveries: dict[str, Gated], capacity: int = 100) -> RoutedOutbox:
    """Return an outbox that sends what waits when it is flushed only, but for the first record of each collector."""
    outboxes = {name: Outbox(one, capacity, spacing_s=3600.0, where=name) for name, one in deliveries.items()}
    return RoutedOutbox(outboxes)


def test_all_records_of_a_trace_go_to_its_collector_in_order() -> None:
    deliveries = {name: Gated() for name in NAMES}
    outbox = routed(deliveries)
    for number in range(3):
        outbox.put([segment(trace_id, number) for trace_id in IDS])
    outbox.put([request(trace_id) for trace_id in IDS])
    assert outbox.close(WAIT_S)
    for name, one in deliveries.items():
        for trace_id in ids_of(name):
            mine = [record for record in one.delivered if record.trace_id == trace_id]
            assert [getattr(record, "span_id", "request") for record in mine] == [0, 1, 2, "request"]
    assert [len(one.delivered) for one in deliveries.values()] == [4 * len(ids_of(name)) for name in NAMES]
    assert all(ids_of(name) for name in NAMES)
    assert [one.closed for one in deliveries.values()] == [1, 1, 1]


def test_a_collector_that_does_not_answer_holds_up_no_other_and_costs_its_oldest(
    caplog: pytest.LogCaptureFixture,
) -> None:
    deliveries = {"a": Gated(gate_open=False), "b": Gated(), "c": Gated()}
    outbox = routed(deliveries, capacity=4)
    first = ids_of("a")[0]
    outbox.put([segment(first)])
    assert deliveries["a"].entered.wait(WAIT_S)
    for number in range(1, 11):
        outbox.put([segment(first, number)])
    assert outbox.dropped == 6
    for name in ("b", "c"):
        outbox.put([segment(ids_of(name)[0])])
        assert deliveries[name].entered.wait(WAIT_S)
    assert not outbox.flush(0.0)
    deliveries["a"].gate.set()
    assert outbox.close(WAIT_S)
    assert [record.span_id for record in deliveries["a"].delivered if isinstance(record, Segment)] == [0, 7, 8, 9, 10]
    lost, again = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert "to a (the queue of 4 is full: it is slow or away)" in lost
    assert again == "telemetry is delivered to a again; 6 segments of 1 stream are lost"


class Last(Gated):
    """A delivery that ends when those of others have delivered so many records."""

    def __init__(self, others: Sequence[Gated], records: int) -> None:
        super().__init__()
        self.others, self.records = others, records

    def deliver(self, batch: Sequence[Record], pause: Pause) -> tuple[int, str]:
        deadline_s = time.monotonic() + WAIT_S
        while sum(len(one.delivered) for one in self.others) < self.records:
            assert time.monotonic() < deadline_s
            time.sleep(0.002)
        return super().deliver(batch, pause)


@pytest.mark.parametrize("ends", [False, True])
def test_all_send_while_the_first_is_waited_for(ends: bool) -> None:
    """Also at the end of a process: the time that one takes is not taken from the others."""
    others = {name: Gated() for name in ("b", "c")}
    waiting = sum(owner(trace_id) != "a" for trace_id in IDS)
    deliveries: dict[str, Gated] = {"a": Last(list(others.values()), 2 * waiting), **others}
    outbox = routed(deliveries)
    outbox.put([segment(trace_id) for trace_id in IDS if owner(trace_id) != "a"])
    assert all(one.entered.wait(WAIT_S) for one in others.values())
    outbox.put([segment(trace_id, 1) for trace_id in IDS])
    assert outbox.close(WAIT_S) if ends else outbox.flush(WAIT_S)
    assert outbox.dropped == 0
    assert sum(len(one.delivered) for one in others.values()) == 2 * waiting
    assert [one.closed for one in deliveries.values()] == [int(ends)] * 3


def test_a_child_process_starts_clean() -> None:
    deliveries = {name: Gated(gate_open=False) for name in NAMES}
    outbox = routed(deliveries)
    outbox.put([segment(trace_id) for trace_id in IDS])
    child = os.fork()
    if not child:
        there = None
        try:
            outbox.after_fork()
            for one in deliveries.values():
                one.gate.set()
            outbox.put([segment(1, 9)])
            there = outbox.flush(WAIT_S) and [record for one in deliveries.values() for record in one.delivered]
        finally:
            os._exit(0 if there and [getattr(record, "span_id", None) for record in there] == [9] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for one in deliveries.values():
        one.gate.set()
    assert outbox.close(WAIT_S)
    assert sum(len(one.delivered) for one in deliveries.values()) == len(IDS)


def test_the_queue_of_each_collector_is_its_share_of_the_whole(caplog: pytest.LogCaptureFixture) -> None:
    """Of 12 places for records three collectors have 4 each: all that wait are never more than with one."""
    ports = free_ports(3)
    settings = listed_settings({ENDPOINTS_VARIABLE: ",".join(f"http://127.0.0.1:{port}" for port in ports)})
    outbox = outbox_for(settings, 12)
    chosen = Rendezvous(settings)
    mine = [trace_id for trace_id in range(1, 400) if chosen.choose(trace_id) == next(iter(settings))]
    outbox.put([segment(mine[0], number) for number in range(12)])
    assert outbox.dropped == 8
    assert "the queue of 4 is full" in caplog.text
    outbox.close(WAIT_S)
    assert outbox_for(settings, 1).dropped == 0  # each has a place at least


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_real_endpoints_get_their_traces_while_one_is_away(protocol: str) -> None:
    """Two collectors answer; nothing listens at the third, whose records wait and are counted as dropped at the end."""
    [nothing] = free_ports(1)
    make: Callable[[], GrpcReceiver | HttpReceiver] = GrpcReceiver if protocol == "grpc" else HttpReceiver
    with make() as first, make() as second:
        there = {one.endpoint: one for one in (first, second)}
        text = ",".join([f"http://127.0.0.1:{nothing}", *there])
        settings = listed_settings({ENDPOINTS_VARIABLE: text, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol})
        outbox = outbox_for(settings)
        outbox.put([segment(trace_id) for trace_id in IDS])
        chosen = Rendezvous(settings)
        assert not outbox.flush(WAIT_S, patient=False)
        got = {name: sorted(int.from_bytes(span.trace_id) for span in one.spans()) for name, one in there.items()}
        assert got == {name: [one for one in IDS if chosen.choose(one) == name] for name in there}
        assert outbox.close(WAIT_S)  # all is settled: given up after one attempt more
        assert outbox.dropped == len(IDS) - sum(map(len, got.values())) > 0
        [missed] = outbox.undelivered()
        assert (missed.losses.segments, missed.where) == (outbox.dropped, f"http://127.0.0.1:{nothing}")
