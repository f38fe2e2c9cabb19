"""The gRPC worker: its protocol with the service, and the death of either process."""

from __future__ import annotations

import os
import random
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from queue import Empty

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.collector.fake_evaluator import FakeEvaluator
from support.collector.http_client import RAW, send
from support.commands import collector, wait_until
from support.otlp import T0_NS, export, segment_span
from support.patience import WAIT_S
from support.ports import free_ports

from otel_llm.collector.decoding import PART_BYTES
from otel_llm.collector.inbox import Export, Inbox, LocalExport
from otel_llm.collector.receive.errors import ANSWERS, BadRequestError, BusyError, answer
from otel_llm.collector.receive.grpc_worker.grpc_receiver import EXPORT
from otel_llm.collector.receive.grpc_worker.parent import GrpcWorker, WorkerExport
from otel_llm.collector.receive.grpc_worker.protocol import DOWN, refusal_of, refused
from otel_llm.collector.receive.refusal_counts import SOURCE
from otel_llm.collector.receive.senders import Sender
from otel_llm.collector.settings import Limits
from otel_llm.config.errors import StartError
from otel_llm.formats.io.journal_format import split
from otel_llm.formats.otlp.cutting import cut_export
from otel_llm.formats.records import DecodeError
from otel_llm.journal.journal_errors import JournalError
from otel_llm.shared.clock import MonotonicClock
from otel_llm.shared.errors import AddressError, RefusalError
from otel_llm.shared.web.address import Address

LOCAL = Address("127.0.0.1", 0)


@contextmanager
def grpc_worker(limits: Limits | None = None) -> Iterator[GrpcWorker]:
    worker = GrpcWorker(LOCAL, limits=limits or Limits(), tokens=None, certificates=None, clock=MonotonicClock())
    worker.start()
    try:
        yield worker
    finally:
        worker.stop(0)


@contextmanager
def evaluating(worker: GrpcWorker, take: Callable[[bytes], bytes]) -> Iterator[None]:
    """Take exports in a thread of its own, as the evaluator does."""
    inbox = Inbox()
    inbox.attach(worker)

    def work() -> None:
        while True:
            try:
                item = inbox.get(1.0)
            except Empty:
                continue
            if item is None:
                return
            assert isinstance(item, WorkerExport)
            try:
                item.acknowledge(take(item.raw))
            except Exception as error:  # noqa: BLE001
                item.refuse(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        inbox.put(None)
        thread.join()
        inbox.close()


def children(pid: int) -> list[int]:
    """Return the processes that this one has started."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text(encoding="ascii").split()]


def call(channel: grpc.Channel, raw: bytes = RAW) -> bytes:
    answer: bytes = channel.unary_unary(EXPORT)(raw, timeout=WAIT_S)
    return answer


def code(channel: grpc.Channel, raw: bytes = RAW) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as raised:
        call(channel, raw)
    found: grpc.StatusCode = raised.value.code()
    return found


def connect(worker: GrpcWorker) -> grpc.Channel:
    return grpc.insecure_channel(str(worker.address), options=[("grpc.max_send_message_length", -1)])


@pytest.mark.parametrize("kind", [kind for kind, _ in ANSWERS])
def test_a_refusal_is_the_same_on_the_other_side(kind: type[RefusalError]) -> None:
    received = kind("a reason")
    frame = refused(7, received)
    length, number, index = DOWN.unpack_from(frame)
    heard = refusal_of(index, frame[DOWN.size :])
    assert (length, number) == (len(frame) - DOWN.size, 7)
    assert (type(heard), str(heard), heard.retry_after_s) == (kind, str(received), received.retry_after_s)


def test_a_refusal_of_no_row_is_a_bug_of_ours() -> None:
    frame = refused(1, RefusalError("x"))
    assert answer(refusal_of(DOWN.unpack_from(frame)[2], b"")).reason == "internal"


def test_every_sender_gets_the_answer_to_its_own_export() -> None:
    """Also those that are larger than what the pipe, or the buffer, holds."""
    draw = random.Random(5)
    sizes = [draw.choice([0, 1, 100, 70_000, 3_000_000]) for _ in range(120)]
    raws = [number.to_bytes(4, "big") + draw.randbytes(size) for number, size in enumerate(sizes)]
    with (
        grpc_worker() as worker,
        evaluating(worker, lambda raw: raw[:4] + str(len(raw)).encode()),
        connect(worker) as channel,
    ):
        with ThreadPoolExecutor(24) as senders:
            answers = list(senders.map(lambda raw: call(channel, raw), raws))
        assert answers == [raw[:4] + str(len(raw)).encode() for raw in raws]
        assert (worker.waiting, worker.oldest_ns) == (0, None)


def test_what_waits_for_its_answer_is_counted_once() -> None:
    """By the worker, also when it is in the inbox and not yet taken out."""
    inbox = Inbox()
    with grpc_worker() as worker, connect(worker) as channel, ThreadPoolExecutor(2) as senders:
        inbox.attach(worker)
        answers = [senders.submit(call, channel) for _ in range(2)]
        wait_until("both wait", lambda: worker.waiting == 2)
        wait_until("they are here", lambda: not inbox.empty())
        assert (inbox.qsize(), inbox.oldest_ns()) == (0, None)
        for _ in answers:
            item = inbox.get(60.0)
            assert isinstance(item, WorkerExport)
            item.acknowledge(b"")
        assert [answer.result(WAIT_S) for answer in answers] == [b"", b""]
        assert worker.waiting == 0
    inbox.close()


def test_the_oldest_export_of_this_process_is_known_behind_one_of_the_worker() -> None:
    """Of one sender, which uses both receivers: the worker reports its own."""
    inbox = Inbox()
    remote, local = Export(b"", Sender(1)), LocalExport(b"", Sender(1))
    remote.receipt_ns, local.receipt_ns = 5, 7
    inbox.put(remote)
    inbox.put(local)
    assert not inbox.empty()  # both are sorted into the sender's queue
    assert inbox.oldest_ns() == 7
    inbox.close()


@given(st.lists(st.integers(0, 3), max_size=40))
def test_neither_source_keeps_the_other_waiting(puts: list[int]) -> None:
    """While both have exports, theirs alternate; each one keeps its order."""

    class Sending:
        gone = False

        def __init__(self) -> None:
            self.raws: list[Export] = []
            self.nothing = socket.socket()

        def fileno(self) -> int:
            return self.nothing.fileno()

        def read(self) -> list[Export]:
            found, self.raws = self.raws, []
            return found

    source, inbox = Sending(), Inbox()
    inbox.attach(source)
    here, there = 0, 0
    taken: list[tuple[str, int]] = []
    try:
        for put in puts:
            if put & 1:
                inbox.put(LocalExport(here.to_bytes(2, "big"), Sender(1)))
                here += 1
            if put & 2:
                source.raws.append(Export(there.to_bytes(2, "big"), Sender(2)))
                there += 1
        inbox.put(None)
        while (item := inbox.get_nowait()) is not None:
            assert isinstance(item, Export)
            taken.append(("here" if isinstance(item, LocalExport) else "there", int.from_bytes(item.raw, "big")))
    finally:
        inbox.close()
        source.nothing.close()
    assert [number for where, number in taken if where == "here"] == list(range(here))
    assert [number for where, number in taken if where == "there"] == list(range(there))
    both = taken[: 2 * min(here, there)]
    assert all(one[0] != other[0] for one, other in pairwise(both))


def test_a_refusal_of_the_evaluator_reaches_the_sender(caplog: pytest.LogCaptureFixture) -> None:
    behind = FakeEvaluator()
    received = [
        (JournalError("/secret/disk is full"), grpc.StatusCode.UNAVAILABLE),
        (BusyError("too many streams in flight"), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (DecodeError("not one"), grpc.StatusCode.INVALID_ARGUMENT),
        (BadRequestError("not one"), grpc.StatusCode.INVALID_ARGUMENT),
        (ZeroDivisionError("a bug"), grpc.StatusCode.INTERNAL),
    ]
    with grpc_worker() as worker, evaluating(worker, behind), connect(worker) as channel:
        for error, expected in received:
            behind.fail_with = error
            assert code(channel) is expected
        behind.forget()
        assert call(channel) == b""
        counts = Counter({key.removeprefix(SOURCE): number for key, number in worker.refusals().items() if number})
    assert counts == {"journal": 1, "malformed": 2, "internal": 1}, "what is busy the flow has counted"
    assert "ZeroDivisionError: a bug" in caplog.text
    assert "secret" not in caplog.text


def test_beyond_what_may_wait_senders_are_told_to_come_back() -> None:
    with grpc_worker(Limits(queued_exports=2)) as worker, connect(worker) as channel, ThreadPoolExecutor(2) as senders:
        waiting = [senders.submit(call, channel) for _ in range(2)]
        wait_until("both wait", lambda: worker.waiting == 2)
        oldest_ns = worker.oldest_ns
        assert oldest_ns is not None
        assert 0 <= time.time_ns() - oldest_ns < 60e9
        assert code(channel) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert worker.refusals()[SOURCE + "behind"] == 1
        with evaluating(worker, lambda _raw: b""):
            assert [one.result(WAIT_S) for one in waiting] == [b"", b""]
            assert call(channel) == b""


def test_an_evaluator_that_is_gone_is_reported() -> None:
    with grpc_worker() as worker, connect(worker) as channel, ThreadPoolExecutor(1) as sender:
        waiting = sender.submit(code, channel)
        wait_until("it waits", lambda: worker.waiting == 1)
        worker.disconnect()
        assert waiting.result(WAIT_S) is grpc.StatusCode.UNAVAILABLE
        assert code(channel) is grpc.StatusCode.UNAVAILABLE


def test_a_process_that_does_not_answer_is_ended() -> None:
    with grpc_worker() as worker:
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGSTOP)
        worker.command_timeout_s = 0.1
        with pytest.raises(StartError, match="does not answer"):
            worker.reload()
        wait_until("it has ended", lambda: not worker.read() and worker.gone)
        assert worker.why_unhealthy() == "the gRPC worker has ended"
        worker.reload()  # without effect


def test_a_process_that_cannot_be_started_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    before = set(Path("/proc/self/fd").iterdir())
    worker = GrpcWorker(LOCAL, limits=Limits(), tokens=None, certificates=None, clock=MonotonicClock())
    with pytest.raises(StartError, match="cannot be started: No such file"):
        worker.bind()
    worker.stop(0)
    assert len(set(Path("/proc/self/fd").iterdir()) - before) <= 1, "no more than the numbers, which it still knows"


def test_a_port_in_use_is_reported_and_no_process_stays() -> None:
    with grpc_worker() as first:
        second = GrpcWorker(first.address, limits=Limits(), tokens=None, certificates=None, clock=MonotonicClock())
        before = children(os.getpid())
        with pytest.raises(AddressError, match="is in use"):
            second.bind()
        assert children(os.getpid()) == before
        second.stop(0)


def test_the_process_ends_with_the_collector(tmp_path: Path) -> None:
    # A port that no client is given: one of another test's could have it as soon as the worker has left it.
    [free] = free_ports(1)
    with collector(tmp_path, "--grpc", f"127.0.0.1:{free}") as service:
        (worker,) = children(service.process.pid)
        host, port = service.grpc.split(":")
        service.process.kill()
        service.process.wait()
        wait_until("it has ended", lambda: not Path(f"/proc/{worker}").exists())
        with socket.socket() as again:
            again.bind((host, int(port)))


def test_a_collector_without_its_grpc_worker_is_unhealthy_and_continues(tmp_path: Path) -> None:
    with ExitStack() as stack:
        service = stack.enter_context(collector(tmp_path))
        web, http = (int(address.rpartition(":")[2]) for address in (service.web, service.http))
        assert send(web, "GET", "/healthz", None, {})[0] == 200
        (worker,) = children(service.process.pid)
        os.kill(worker, signal.SIGKILL)
        wait_until("unhealthy", lambda: send(web, "GET", "/healthz", None, {})[0] == 503)
        assert b"the gRPC worker has ended" in send(web, "GET", "/healthz", None, {})[2]
        assert send(web, "GET", "/readyz", None, {})[0] == 503
        assert send(http)[0] == 200
        status, reported = service.stop()
        assert status == 0
        assert reported.count("the gRPC worker has ended") == 1


def test_signals_to_all_its_processes_stop_it_as_to_one(tmp_path: Path) -> None:
    """As a service manager sends them: what was acknowledged is evaluated."""
    with collector(tmp_path, "--verdicts", "all") as service, grpc.insecure_channel(service.grpc) as channel:
        assert call(channel) == b""
        for child in children(service.process.pid):
            os.kill(child, signal.SIGTERM)
        assert call(channel, export(segment_span(0, 0)).SerializeToString()) == b""
        status, reported = service.stop()
    assert status == 0
    assert "stopped: 2 exports" in reported


def test_receipts_do_not_go_back_whichever_listener_receives_them(tmp_path: Path) -> None:
    """Large exports are decoded in the background: the journal has all exports in the order of evaluation."""
    big = export(*[segment_span(1, 0, [T0_NS] * 1000, request=number) for number in range(1, 60)]).SerializeToString()
    assert len(big) > 2**20
    with collector(tmp_path) as service:
        port = int(service.http.rpartition(":")[2])
        with grpc.insecure_channel(service.grpc) as channel, ThreadPoolExecutor(8) as senders:
            sent = [senders.submit(call, channel, big if number % 10 == 0 else RAW) for number in range(60)]
            sent += [senders.submit(lambda: send(port)[2]) for _ in range(60)]
            assert {one.result(WAIT_S) for one in sent} == {b""}
        assert service.stop()[0] == 0
    files = sorted((tmp_path / "journal").glob("*.otlp"))
    receipts = [record.receipt_ns or 0 for path in files for record in split(path.read_bytes())[0]]
    assert len(receipts) == 114 + 6 * len(cut_export(big, PART_BYTES)) > 140
    assert receipts == sorted(receipts)
