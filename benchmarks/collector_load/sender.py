"""The fleet's senders: a process of its own that sends encoded exports over gRPC, paced or as fast as acknowledged."""

from __future__ import annotations

import gc
import multiprocessing
import threading
import time
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc
from collector_load.fleet import read_exports

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection
    from pathlib import Path

METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
CONNECTIONS = 8
"""Connections, each with one export under way at a time and the applications that share it in order."""
RETRIED = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)
RETRY_S = 0.05
PATIENCE_S = 60.0
"""How long after the last export is due the sending goes on."""


@dataclass(slots=True)
class Delivery:
    """How the sending went."""

    seconds: float = 0.0
    cpu_s: float = 0.0
    refused: int = 0
    unsent: int = 0
    """Exports that were not acknowledged when patience ended."""
    waits: list[tuple[int, float]] = field(default_factory=list)
    """Of each export its due time (unix ns), and seconds from then (or from its sending, unpaced) to its answer."""


class Sending:
    """The parent's handle on the sending process."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def go(self) -> None:
        """Let it begin; paced exports still wait until they are due."""
        self._pipe.send("go")

    def done(self) -> Delivery:
        """Wait until everything is acknowledged."""
        delivery = self._pipe.recv()
        if not isinstance(delivery, Delivery):
            raise TypeError(f"the sender failed: {delivery}")
        return delivery


@contextmanager
def sending(path: Path, address: str, *, paced: bool = True, patience_s: float = PATIENCE_S) -> Iterator[Sending]:
    """Start the process and wait until it has read the file and is connected."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_main, args=(theirs, path, address, paced, patience_s), daemon=True)
    process.start()
    theirs.close()
    try:
        assert ours.recv() == "ready"
        yield Sending(ours)
    finally:
        process.terminate()
        process.join()


def _main(pipe: Connection, path: Path, address: str, paced: bool, patience_s: float) -> None:
    queues: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
    for due_ns, application, raw in read_exports(path):
        queues[application % CONNECTIONS].append((due_ns, raw))
    gc.freeze()
    gc.disable()
    own_connection = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.insecure_channel(address, own_connection) for _ in queues]
    for channel in channels:
        grpc.channel_ready_future(channel).result(timeout=30)
    pipe.send("ready")
    pipe.recv()
    last_due_ns = max(queue[-1][0] for queue in queues.values())
    give_up_ns = max(last_due_ns, time.time_ns()) + int(patience_s * 1e9)
    delivery, failures = Delivery(), list[BaseException]()
    lock = threading.Lock()

    def work(channel: grpc.Channel, queue: list[tuple[int, bytes]]) -> None:
        try:
            sent = _send_all(channel, queue, paced, give_up_ns)
        except BaseException as error:  # noqa: BLE001  the parent hears of it
            failures.append(error)
            return
        with lock:
            delivery.refused += sent.refused
            delivery.unsent += len(queue) - len(sent.waits)
            delivery.waits += sent.waits

    began, cpu = time.monotonic(), time.process_time()
    workers = [
        threading.Thread(target=work, args=pair, daemon=True) for pair in zip(channels, queues.values(), strict=True)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    delivery.seconds, delivery.cpu_s = time.monotonic() - began, time.process_time() - cpu
    pipe.send(repr(failures[0]) if failures else delivery)
    pipe.recv()  # until the parent ends this process


def _send_all(channel: Any, queue: list[tuple[int, bytes]], paced: bool, give_up_ns: int) -> Delivery:
    export = channel.unary_unary(METHOD)
    sent = Delivery()
    for due_ns, raw in queue:
        began_ns = due_ns if paced else time.time_ns()
        if paced and (early_ns := due_ns - time.time_ns()) > 0:
            time.sleep(early_ns / 1e9)
        while time.time_ns() < give_up_ns:
            try:
                export(raw, timeout=60)
                sent.waits.append((due_ns, (time.time_ns() - began_ns) / 1e9))
                break
            except grpc.RpcError as error:
                if error.code() not in RETRIED:
                    raise
                sent.refused += 1
                time.sleep(RETRY_S)
    return sent
