"""The wall clock of a collector's machine jumps to and fro while exports come: receipts go on as if it had not."""

from __future__ import annotations

import http.client
import random
import re
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest
from support.collector.http_client import PROTOBUF
from support.commands import wait_until
from support.otlp import IDENTITY, export, segment_span
from support.patience import WAIT_S
from support.recordings import received

from otel_llm.actions.sinks.console import Console
from otel_llm.collector.receive.listeners import Addresses
from otel_llm.collector.service import Service
from otel_llm.collector.settings import Settings
from otel_llm.evaluate.timers import Timeouts
from otel_llm.rules.files.load import load_rules
from otel_llm.rules.files.slo_file import load_slo
from otel_llm.shared.web.address import Address

SECOND = 1_000_000_000
HOUR_NS = 3600 * SECOND
EXPORTS = 300


def test_exports_are_taken_in_order_whatever_the_wall_clock_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = Address("127.0.0.1", 0)
    service = Service(
        classes=load_slo(),
        rules=load_rules(()),
        settings=Settings(),
        journal_folder=tmp_path / "journal",
        decisions_path=tmp_path / "decisions",
        windows_path=None,
        at=Addresses(local, local, local),
        window_ns=SECOND,
        timeouts=Timeouts(lateness_ns=SECOND, lost_after_ns=600 * SECOND),
        console=Console(echo=lambda _: None, verdicts="all"),
        load=lambda: (load_slo(), load_rules(())),
    )
    service.prepare()
    service.serve()
    statuses: list[int] = []
    offset_ns = 0
    real_ns, real = time.time_ns, time.time
    began_ns = real_ns()
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + offset_ns)
    monkeypatch.setattr(time, "time", lambda: real() + offset_ns / SECOND)
    (address,) = re.findall(r"OTLP/HTTP (\S+),", service.listening())

    def send(first: int) -> None:
        connection = http.client.HTTPConnection(address, timeout=WAIT_S)
        for number in range(first, EXPORTS + 1, 3):
            raw = export(segment_span(0, 0, request=number, attributes=IDENTITY)).SerializeToString()
            connection.request("POST", "/v1/traces", raw, PROTOBUF)
            answer = connection.getresponse()
            answer.read()
            statuses.append(answer.status)
        connection.close()

    sending = [threading.Thread(target=send, args=[first]) for first in (1, 2, 3)]
    for thread in sending:
        thread.start()
    drawn = random.Random(7)
    while any(thread.is_alive() for thread in sending):
        before = len(statuses)
        offset_ns = drawn.randrange(-48 * HOUR_NS, 48 * HOUR_NS)
        wait_until("one more", lambda before=before: len(statuses) > before or len(statuses) == EXPORTS)
    for thread in sending:
        thread.join()
    offset_ns = 0
    stopped = service.stop()
    assert stopped.clean
    assert statuses == [200] * EXPORTS
    receipts = [one.receipt_ns or 0 for one in received([tmp_path / "journal"])]
    assert len(receipts) == EXPORTS
    assert all(earlier <= later for earlier, later in pairwise(receipts))
    assert began_ns - SECOND <= receipts[0] <= receipts[-1] < began_ns + HOUR_NS
    assert (tmp_path / "decisions").read_text() == ""
