"""What an export costs its sender pays: others are served before it, and a sender alone is never slowed."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import Empty
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.collector.fake_evaluator import FakeEvaluator
from support.collector.flow import flowing
from support.commands import wait_until
from support.core.core_spans import sent_segment
from support.otlp import export
from support.patience import WAIT_S

from otel_llm.collector.decoding import BACKGROUND_DECODE_BYTES, PartSizes
from otel_llm.collector.inbox import HEAVY_WAIT_NS
from otel_llm.collector.pipeline import Pipeline
from otel_llm.collector.receive.errors import BusyError
from otel_llm.collector.receive.grpc_worker.grpc_receiver import EXPORT, FairPool, GrpcReceiver, caller_of
from otel_llm.collector.receive.senders import (
    ALIKE_S,
    FORGIVEN_SHARE,
    MOST_USED_S,
    FairQueue,
    RankedLock,
    Room,
    Sender,
    sender_of,
)
from otel_llm.collector.settings import Limits
from otel_llm.formats.batch import Batch
from otel_llm.formats.io.journal_format import split
from otel_llm.shared.clock import FakeClock
from otel_llm.shared.web.address import Address
from otel_llm.shared.web.tokens import Bearer

HEAVY, LIGHT = 1, 2
LOCAL = Address("127.0.0.1", 0)


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(clock: Clock) -> FairQueue[tuple[int, int]]:
    return FairQueue(clock)


def drained(queue: FairQueue[tuple[int, int]]) -> list[tuple[int, int]]:
    return [queue.take() for _ in range(len(queue))]


# The queue.


def test_who_has_used_much_waits_for_others(queue: FairQueue[tuple[int, int]], clock: Clock) -> None:
    for number in range(3):
        queue.put(HEAVY, (HEAVY, number))
    assert queue.take() == (HEAVY, 0)
    queue.charge(HEAVY, 1.0)
    queue.put(LIGHT, (LIGHT, 0))
    queue.put(LIGHT, (LIGHT, 1))
    assert drained(queue) == [(LIGHT, 0), (LIGHT, 1), (HEAVY, 1), (HEAVY, 2)]
    for late_s, first in ((0.5 / FORGIVEN_SHARE, LIGHT), (1.0 / FORGIVEN_SHARE, HEAVY)):
        queue.put(HEAVY, (HEAVY, 3))
        queue.put(LIGHT, (LIGHT, 2))
        clock.now_s = 100.0 + late_s
        assert drained(queue)[0][0] == first


def test_senders_alike_are_served_in_order_of_arrival(queue: FairQueue[tuple[int, int]]) -> None:
    queue.charge(HEAVY, ALIKE_S / 2)
    sent = [(1 + number % 5, number) for number in range(40)]
    for one in sent:
        queue.put(one[0], one)
    assert drained(queue) == sent


def test_nobody_is_kept_waiting_for_ever(queue: FairQueue[tuple[int, int]], clock: Clock) -> None:
    queue.charge(HEAVY, 1_000.0)
    queue.put(HEAVY, (HEAVY, 0))
    queue.put(LIGHT, (LIGHT, 0))
    queue.charge(LIGHT, MOST_USED_S + 1)
    clock.now_s += MOST_USED_S / FORGIVEN_SHARE
    assert queue.take() == (HEAVY, 0)


def test_a_sender_whose_export_is_under_way_elsewhere_is_held(queue: FairQueue[tuple[int, int]]) -> None:
    for number in range(3):
        queue.put(HEAVY, (HEAVY, number))
    first = queue.take()
    queue.hold(HEAVY)
    with pytest.raises(Empty):
        queue.take()
    queue.put(LIGHT, (LIGHT, 0))
    assert queue.take() == (LIGHT, 0)
    queue.put_back(HEAVY, first)
    assert drained(queue) == [(HEAVY, 0), (HEAVY, 1), (HEAVY, 2)]


def test_senders_that_are_idle_are_forgotten(queue: FairQueue[tuple[int, int]], clock: Clock) -> None:
    for sender in range(10_000):
        queue.put(sender, (sender, 0))
        assert queue.take() == (sender, 0)
        queue.charge(sender, 0.001)
        clock.now_s += 0.001
    assert queue.senders < 200


@given(st.lists(st.tuples(st.integers(1, 4), st.sampled_from(["put", "take", "charge", "hold", "back", "later"]))))
def test_each_senders_own_come_in_order_and_none_is_lost(steps: list[tuple[int, str]]) -> None:
    clock = Clock()
    queue: FairQueue[tuple[int, int]] = FairQueue(clock)
    put: Counter[int] = Counter()
    taken: Counter[int] = Counter()
    held: dict[int, tuple[int, int]] = {}

    def take() -> None:
        sender, number = queue.take()
        assert sender not in held
        assert number == taken[sender]
        taken[sender] += 1

    for sender, what in steps:
        if what == "put":
            queue.put(sender, (sender, put[sender]))
            put[sender] += 1
        elif what == "charge":
            queue.charge(sender, 0.3)
        elif what == "later":
            clock.now_s += 1.0
        elif what == "back" and sender in held:
            queue.put_back(sender, held.pop(sender))
            taken[sender] -= 1
        elif any(put[one] > taken[one] and one not in held for one in put):
            take()
            if what == "hold" and taken[sender] and sender not in held:
                held[sender] = (sender, taken[sender] - 1)
                queue.hold(sender)
        else:
            with pytest.raises(Empty):
                queue.take()
    for sender, item in held.items():
        queue.put_back(sender, item)
        taken[sender] -= 1
    held.clear()
    while len(queue):
        take()
    assert taken == put


# Room, lock, threads.


def test_one_sender_leaves_room_for_others() -> None:
    room = Room(64, 6400)
    taken = 0
    while room.take(HEAVY, 1):
        taken += 1
    assert taken == 56
    assert all(room.take(LIGHT, 1) for _ in range(8))
    assert not room.take(LIGHT, 1)
    room.leave(HEAVY, 1)
    assert not room.take(HEAVY, 1)
    assert room.take(LIGHT + 1, 1)
    assert (room.count, room.bytes_of(HEAVY), room.bytes_of(99)) == (64, 55, 0)
    of_bytes = Room(1000, 6400)
    assert of_bytes.take(HEAVY, 6000)
    assert not of_bytes.take(HEAVY, 1)
    assert of_bytes.take(LIGHT, 5000)  # one always fits
    assert not of_bytes.take(LIGHT + 1, 1)


def test_the_turn_goes_to_the_lowest_rank() -> None:
    lock, served = RankedLock(), list[int]()
    lock.acquire(lambda: 0)
    threads = []
    for rank in (3, 1, 2):
        asked = threading.Event()

        def work(rank: int = rank, asked: threading.Event = asked) -> None:
            def ranked() -> int:
                asked.set()
                return rank

            lock.acquire(ranked)
            served.append(rank)
            lock.release()

        threads.append(threading.Thread(target=work))
        threads[-1].start()
        assert asked.wait(WAIT_S)
    lock.release()
    for thread in threads:
        thread.join(WAIT_S)
    assert served == [1, 2, 3]


def test_threads_are_left_for_others() -> None:
    class Event:
        def __init__(self, peer: str) -> None:
            self.call = self
            self.invocation_metadata: tuple[object, ...] = ()
            self._peer = peer.encode()

        def peer(self) -> bytes:
            return self._peer

    go = threading.Event()
    pool = FairPool(8, 64, "test")
    heavy, light = Event("ipv4:127.0.0.2:1"), Event("ipv4:127.0.0.1:2")

    def work(_: Event) -> str:
        return "refused" if pool.refusing else str(go.wait(WAIT_S))

    hanging = [pool.submit(work, heavy) for _ in range(56)]
    assert pool.submit(work, heavy).result(WAIT_S) == "refused"
    done: Future[str] = pool.submit(lambda _: "served", light)
    assert done.result(WAIT_S) == "served"
    go.set()
    assert [one.result(WAIT_S) for one in hanging] == ["True"] * 56
    wait_until("all are done", lambda: pool.pending == 0)
    pool.shutdown()


def test_who_calls_is_told_from_what_grpc_hands_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC's own event is looked into: this is what notices another version of gRPC."""
    seen = []

    submit = FairPool.submit

    def noting(self, fn, /, *args, **kwargs):  # type: ignore[no-untyped-def]
        seen.append(caller_of(args))
        return submit(self, fn, *args, **kwargs)

    monkeypatch.setattr(FairPool, "submit", noting)
    receiver = GrpcReceiver(LOCAL, FakeEvaluator())
    receiver.start()
    try:
        with grpc.insecure_channel(str(receiver.address)) as channel:
            call = channel.unary_unary(EXPORT)
            call(b"", timeout=WAIT_S)
            call(b"", timeout=WAIT_S, metadata=[("authorization", "Bearer x")])
    finally:
        receiver.stop(0)
    assert seen == ["127.0.0.1", "Bearer x"]


def test_a_sender_is_its_token_or_its_network() -> None:
    assert sender_of("127.0.0.1") == sender_of("::ffff:127.0.0.1") != sender_of("127.0.0.2")
    assert sender_of("2001:db8::1") == sender_of("2001:db8::2") != sender_of("2001:db8:0:1::1")
    one, two = Bearer(b"one", "a"), Bearer(b"two", "a")
    assert sender_of("127.0.0.1", one) == sender_of("127.0.0.2", one) != sender_of("127.0.0.1", two)
    assert sender_of("127.0.0.1").number > 0
    assert (sender_of("127.0.0.1").tenant, sender_of("127.0.0.1", one).tenant) == (None, "a")


def test_the_sender_comes_with_the_message_at_both_receivers() -> None:
    from support.collector.http_client import PROTOBUF, RAW, send, serving

    from otel_llm.collector.receive.otlp_http import otlp_app

    senders: list[Sender] = []

    def accept(_raw: bytes, sender: Sender) -> bytes:
        senders.append(sender)
        return b""

    receiver = GrpcReceiver(LOCAL, accept)
    receiver.start()
    try:
        with grpc.insecure_channel(str(receiver.address)) as channel:
            channel.unary_unary(EXPORT)(RAW, timeout=WAIT_S)
        from support.collector.http_client import otlp_listener

        with serving(otlp_listener(app=otlp_app(accept))) as server:
            assert send(server.port, "POST", "/v1/traces", RAW, PROTOBUF)[0] == 200
    finally:
        receiver.stop(0)
    assert senders == [sender_of("127.0.0.1")] * 2


# The flow.


@contextmanager
def busy(flow: Pipeline) -> Iterator[None]:
    """Keep the evaluator's thread busy."""
    began, go = threading.Event(), threading.Event()

    def work() -> bool:
        began.set()
        return go.wait(WAIT_S)

    with ThreadPoolExecutor(1) as threads:
        blocked = threads.submit(flow.call, work, 60.0)
        assert began.wait(WAIT_S)
        try:
            yield
        finally:
            go.set()
        assert blocked.result(WAIT_S)


def waits(flow: Pipeline, number: int) -> None:
    """Wait until so many exports wait."""
    wait_until(f"{number} wait", lambda: flow.counts()["queue"] == number)


def raw_of(request: int) -> bytes:
    return export(*[sent_segment(seq, 0, request=request) for seq in range(1, 3)]).SerializeToString()


def in_journal(folder: Path) -> list[int]:
    """Return whose exports are in the journal, in order: by the request that each is about."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    records = [record for path in sorted(folder.glob("*.otlp")) for record in split(path.read_bytes())[0]]
    spans = [ExportTraceServiceRequest.FromString(one.raw).resource_spans[0].scope_spans[0].spans for one in records]
    return [int.from_bytes(one[0].trace_id, "big") for one in spans]


@pytest.mark.parametrize("large_bytes", [2**20, 0])
def test_others_are_taken_in_before_the_backlog_of_who_used_much(tmp_path: Path, large_bytes: int) -> None:
    with flowing(tmp_path, sizes=PartSizes(background=large_bytes)) as flow, ThreadPoolExecutor(8) as threads:
        flow.inbox.charge(HEAVY, 1.0)
        answers = []
        with busy(flow):
            for number, sender in enumerate((HEAVY, HEAVY, HEAVY, LIGHT, LIGHT), 1):
                answers.append(threads.submit(flow.accept, raw_of(number), Sender(sender)))
                waits(flow, number)
        assert [answer.result(WAIT_S) for answer in answers] == [b""] * 5
    assert in_journal(tmp_path) == ([4, 5, 1, 2, 3] if large_bytes else in_journal(tmp_path))
    found = in_journal(tmp_path)
    assert [one for one in found if one < 4] == [1, 2, 3]
    assert [one for one in found if one > 3] == [4, 5]


def test_others_have_turns_between_the_parts_of_a_large_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is one export to its sender, and several records in the journal."""
    large = export(*[sent_segment(seq, 0, request=1) for seq in range(1, 60)]).SerializeToString()
    applied, go, light = threading.Event(), threading.Event(), list[Future[bytes]]()
    sizes = PartSizes(background=1_000, part=1_000)
    with flowing(tmp_path, sizes=sizes) as flow, ThreadPoolExecutor(4) as threads:
        apply = flow.evaluator.apply

        def slowly(batch: Batch, now_ns: int) -> None:
            if not applied.is_set():
                applied.set()
                assert go.wait(WAIT_S)
            apply(batch, now_ns)

        monkeypatch.setattr(type(flow.evaluator), "apply", lambda _, batch, now_ns: slowly(batch, now_ns))
        flow.inbox.charge(HEAVY, 1.0)
        heavy = threads.submit(flow.accept, large, Sender(HEAVY))
        assert applied.wait(WAIT_S)
        later = threads.submit(flow.accept, raw_of(2), Sender(HEAVY))
        wait_until("it waits", lambda: flow.counts()["queue"] >= 1)
        light.append(threads.submit(flow.accept, raw_of(3), Sender(LIGHT)))
        wait_until("both wait", lambda: flow.counts()["queue"] >= 2)
        assert not heavy.done()
        go.set()
        assert [one.result(WAIT_S) for one in (heavy, later, *light)] == [b""] * 3
        counts = flow.call(flow.counts)
        assert (counts["exports"], counts["received_exports"], counts["received_spans"]) == (3, 3, 63)
        assert flow.room.count == 0
    assert in_journal(tmp_path)[:2] == [1, 3]
    assert in_journal(tmp_path)[-1] == 2
    assert in_journal(tmp_path).count(1) > 5


@pytest.mark.parametrize(("others", "used_s", "records"), [(True, 1.0, 3), (True, 0.0, 1), (False, 1.0, 1)])
def test_who_used_much_has_shorter_turns_where_there_are_others(
    tmp_path: Path, others: bool, used_s: float, records: int
) -> None:
    raw = export(*[sent_segment(seq, 0, request=1) for seq in range(1, 31)]).SerializeToString()
    assert 2 * 1_500 < len(raw) < BACKGROUND_DECODE_BYTES
    with flowing(tmp_path, sizes=PartSizes(small_part=1_500)) as flow:
        if others:
            flow.accept(raw_of(2), Sender(LIGHT))
        flow.inbox.charge(HEAVY, used_s)
        flow.accept(raw, Sender(HEAVY))
        assert flow.call(flow.counts)["received_spans"] == 30 + 2 * others
    assert in_journal(tmp_path).count(1) == records or in_journal(tmp_path).count(1) > records > 1


def test_what_an_export_costs_is_charged_to_its_sender(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    charged: dict[int, list[float]] = {}
    charge = FairQueue.charge

    def noting(self: FairQueue[Any], sender: int, cost_s: float) -> None:
        charged.setdefault(sender, []).append(cost_s)
        charge(self, sender, cost_s)

    monkeypatch.setattr(FairQueue, "charge", noting)
    with flowing(tmp_path) as flow:
        flow.accept(raw_of(1) * 2_000, Sender(HEAVY))
        flow.call(lambda: None)
    assert charged.keys() == {HEAVY}
    assert len(charged[HEAVY]) > 2, "for decoding it, and for evaluating each of its parts"
    assert min(charged[HEAVY]) > 0.0


@pytest.mark.parametrize(("other", "behind_ns"), [(LIGHT, HEAVY_WAIT_NS), (HEAVY, 3600 * 10**9)])
def test_exports_of_a_heavy_sender_do_not_delay_the_timers_of_others(
    tmp_path: Path, other: int, behind_ns: int
) -> None:
    """Timers of another sender's streams run while they wait; those of a lone sender wait with its exports."""
    with flowing(tmp_path) as flow, ThreadPoolExecutor(8) as threads:
        assert isinstance(flow.clock, FakeClock)
        flow.accept(raw_of(2), Sender(other))
        flow.inbox.charge(HEAVY, 1.0)
        with busy(flow):
            answer = threads.submit(flow.accept, raw_of(1), Sender(HEAVY))
            waits(flow, 1)
            flow.clock.at_ns += 3600 * 10**9
            turn_ns = flow.clock.now_ns()
        assert answer.result(WAIT_S) == b""
    records = [record for path in sorted(tmp_path.glob("*.otlp")) for record in split(path.read_bytes())[0]]
    assert turn_ns - (records[-1].receipt_ns or 0) == behind_ns


def test_one_that_fills_the_room_keeps_nobody_out(tmp_path: Path) -> None:
    with flowing(tmp_path, Limits(queued_exports=16)) as flow, ThreadPoolExecutor(32) as threads:
        with busy(flow):
            answers = [threads.submit(flow.accept, raw_of(number), Sender(HEAVY)) for number in range(1, 15)]
            waits(flow, 14)
            with pytest.raises(BusyError):
                flow.accept(raw_of(99), Sender(HEAVY))
            answers.append(threads.submit(flow.accept, raw_of(50), Sender(LIGHT)))
            waits(flow, 15)
        assert [answer.result(WAIT_S) for answer in answers] == [b""] * 15
