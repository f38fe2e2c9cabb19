"""One client that attacks: a process of its own, at an address of its own, sending so many bytes a second over HTTP."""

from __future__ import annotations

import http.client
import multiprocessing
import threading
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from abuse_load.bombs import ATTACKS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

ADDRESS = "127.0.0.2"
CONNECTIONS = 16
VARIANTS = 64
"""Of an attack whose requests differ, as many are made ahead as are sent in the time, up to so many a second."""
_PATIENCE_S = 120.0


@dataclass(slots=True)
class Attacked:
    """What was sent and how it was answered."""

    requests: int = 0
    sent_bytes: int = 0
    decompressed_bytes: int = 0
    answers: Counter[int] = field(default_factory=Counter)
    """By HTTP status; 0: none."""


@contextmanager
def attacking(name: str, address: str, bytes_s: float, seconds: float) -> Iterator[Connection]:
    """Start the attacking process and yield its pipe: a message to it begins the attack, an `Attacked` comes back."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_main, args=(theirs, name, address, bytes_s, seconds), daemon=True)
    process.start()
    theirs.close()
    try:
        assert ours.recv() == "ready"
        yield ours
    finally:
        process.terminate()
        process.join()


def _main(pipe: Connection, name: str, address: str, bytes_s: float, seconds: float) -> None:
    attack = ATTACKS[name]
    bodies = [attack.body(0)]
    if attack.body(1) != bodies[0] and not attack.zipped:
        wanted = int(bytes_s * seconds / len(bodies[0])) + 1
        bodies += [attack.body(number) for number in range(1, min(wanted, int(VARIANTS * seconds)))]
    raw_bytes = len(attack.raw(0))
    headers = {"Content-Type": attack.media_type, **({"Content-Encoding": "gzip"} if attack.zipped else {})}
    host, _, port = address.rpartition(":")
    done, lock = Attacked(), threading.Lock()
    pipe.send("ready")
    pipe.recv()
    began = time.monotonic()

    def work() -> None:
        connection = http.client.HTTPConnection(host, int(port), timeout=_PATIENCE_S, source_address=(ADDRESS, 0))
        while True:
            with lock:
                due_s = done.sent_bytes / bytes_s
                if due_s >= seconds or time.monotonic() - began >= seconds:
                    return
                body = bodies[done.requests % len(bodies)]
                done.requests += 1
                done.sent_bytes += len(body)
                done.decompressed_bytes += raw_bytes
            time.sleep(max(0.0, began + due_s - time.monotonic()))
            try:
                connection.request("POST", "/v1/traces", body, headers)
                answer = connection.getresponse()
                answer.read()
                status = answer.status
            except (OSError, http.client.HTTPException):
                connection.close()
                status = 0
            with lock:
                done.answers[status] += 1

    threads = [threading.Thread(target=work, daemon=True) for _ in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pipe.send(done)
    pipe.recv()
