"""`docs/architecture.md` tells the way of an export: its functions exist, and run in that order."""

from __future__ import annotations

import importlib
import re
import sys
import threading
from functools import reduce
from pathlib import Path
from types import FrameType
from typing import Any

import grpc
import pytest
from support.commands import wait_until
from support.otlp import T0_NS, export, request_span, stream_spans
from support.patience import WAIT_S

from otel_llm.actions.sinks.console import Console
from otel_llm.collector.receive.grpc_worker.grpc_receiver import EXPORT
from otel_llm.collector.receive.listeners import Addresses
from otel_llm.collector.service import Service
from otel_llm.collector.settings import Settings
from otel_llm.evaluate.timers import Timeouts
from otel_llm.rules.files.load import load_rules
from otel_llm.rules.files.slo_file import load_slo
from otel_llm.shared.web.address import Address

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
STEPS = re.findall(r"^\d+\. `(otel_llm/\S+\.py)` `([\w.]+)`", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
WORKER = 2
"""The first steps run in the gRPC worker, a process of its own."""
MS = 1_000_000


def test_the_steps_are_few_and_their_functions_exist() -> None:
    assert 10 <= len(STEPS) <= 15
    for path, name in STEPS:
        module: Any = importlib.import_module(path.removesuffix(".py").replace("/", "."))
        assert callable(reduce(getattr, name.split("."), module))


@pytest.mark.essential
def test_an_export_takes_the_steps_in_order(tmp_path: Path) -> None:
    wanted = {(str(ROOT / path), name): place for place, (path, name) in enumerate(STEPS)}
    order: list[int] = []
    watching = threading.Event()

    def watch(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and watching.is_set():
            code = frame.f_code
            place = wanted.get((code.co_filename, code.co_qualname))
            if place is not None and place not in order:
                order.append(place)

    local = Address("127.0.0.1", 0)
    service = Service(
        classes=load_slo(),
        rules=load_rules(()),
        settings=Settings(),
        journal_folder=tmp_path / "journal",
        decisions_path=None,
        windows_path=None,
        at=Addresses(local, local, local),
        window_ns=1000 * MS,
        timeouts=Timeouts(lateness_ns=500 * MS, lost_after_ns=1000 * MS),
        console=Console(echo=lambda _: None, verdicts="all"),
        load=lambda: (load_slo(), load_rules(())),
    )
    threading.setprofile(watch)
    try:
        service.prepare()
        service.serve()
        pipeline = service.pipeline
        listeners = service.listeners
        commit, first, last = stream_spans([T0_NS + MS, T0_NS + 2 * MS], end_ns=T0_NS + 9 * MS, segment_tokens=1)
        with grpc.insecure_channel(str(listeners.grpc.address)) as channel:
            call = channel.unary_unary(EXPORT)
            watching.set()
            for spans in ((commit, first), (last, request_span())):
                call(export(*spans).SerializeToString(), timeout=WAIT_S)
            wait_until("judged", lambda: len(pipeline.sinks.recent.of()) == 1)
    finally:
        threading.setprofile(None)
        service.stop()
    assert sys.getprofile() is None
    assert order == list(range(WORKER, len(STEPS)))
