"""Closed windows as OTLP logs, read by a real receiver."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from support.collector.out_receiver import BACKENDS, Backend, Refusal, silent_until
from support.collector.out_verdicts import T0_NS, judged
from support.commands import wait_until
from support.patience import WAIT_S

from otel_llm.collector.export.window_export import ROW_BYTES, WindowsOut
from otel_llm.config.otlp_target import OtlpTarget, Protocol
from otel_llm.slo.metrics import WINDOWS
from otel_llm.slo.windows import WindowTotals

NOW_NS = T0_NS + 25_000_000_000
WINDOW_NS = 10_000_000_000
PROTOCOLS: list[Protocol] = ["grpc", "http/protobuf"]
both = pytest.mark.parametrize("protocol", PROTOCOLS)


def row(number: int = 0, model: str | None = "m") -> dict[str, object]:
    """Return a window as the evaluator closes it."""
    totals = WindowTotals()
    totals.started()
    verdict, _ = judged([100.0, 20.0, 3000.0])
    totals.ended([("completed", verdict)])
    group = {"slo_class": "chat", "model": model, "instance": None, "measured_at": "client"}
    return dict(totals.row(T0_NS + number * WINDOW_NS, WINDOW_NS, group))


def out(port: int, protocol: Protocol, **changed: Any) -> WindowsOut:
    made = WindowsOut(
        OtlpTarget(endpoint=f"http://127.0.0.1:{port}", protocol=protocol, timeout_s=changed.pop("timeout_s", WAIT_S)),
        now_ns=lambda: NOW_NS,
        instance_id="collector-1",
        **({"linger_s": 0.01} | changed),
    )
    made.start()
    return made


def records(backend: Backend) -> list[LogRecord]:
    return [
        record
        for _, body in backend.bodies
        for resource in ExportLogsServiceRequest.FromString(body).resource_logs
        for scope in resource.scope_logs
        for record in scope.log_records
    ]


def plain(value: AnyValue) -> object:
    return getattr(value, value.WhichOneof("value") or "")


@both
def test_a_receiver_reads_the_columns(protocol: Protocol) -> None:
    backend, given = Backend(), [row(0), row(1, model=None)]
    with BACKENDS[protocol](backend) as port:
        sender = out(port, protocol)
        for one in given:
            sender.offer(one)
        assert sender.stop(WAIT_S)
    read = records(backend)
    for number, (record, expected) in enumerate(zip(read, given, strict=True)):
        assert record.event_name == "otel_llm.window"
        assert record.time_unix_nano == T0_NS + (number + 1) * WINDOW_NS
        assert record.observed_time_unix_nano == NOW_NS
        assert (record.severity_number, record.trace_id) == (9, b"")
        attributes = {one.key: plain(one.value) for one in record.attributes}
        assert attributes == {name: value for name, value in expected.items() if value is not None}
        assert {name: type(value) for name, value in attributes.items()} == {
            name: type(value) for name, value in expected.items() if value is not None
        }
    assert set(given[0]) == set(WINDOWS)
    assert given[0]["instance"] is None
    assert {one.key for one in read[0].attributes} == set(WINDOWS) - {"instance"}
    (resource,) = ExportLogsServiceRequest.FromString(backend.bodies[0][1]).resource_logs
    named = {one.key: one.value.string_value for one in resource.resource.attributes}
    assert (named["service.name"], named["service.instance.id"]) == ("otel-llm-collector", "collector-1")
    assert [scope.scope.name for scope in resource.scope_logs] == ["otel_llm.collector"]
    assert sender.counts() == {
        "windows_out_queued_bytes": 0,
        "windows_out_sent": 2,
        "windows_out_dropped": 0,
        "windows_out_failed": 0,
    }


def test_offers_return_while_a_backend_never_answers_and_what_has_no_room_is_counted() -> None:
    never = threading.Event()
    backend = Backend(answer=silent_until(never))
    with ExitStack() as running:
        port = running.enter_context(BACKENDS["http/protobuf"](backend))
        running.callback(never.set)
        sender = out(port, "http/protobuf", queue_bytes=5 * (ROW_BYTES + len("chatmclient")), timeout_s=WAIT_S)
        for number in range(1000):
            sender.offer(row(number))
        assert sender.counts()["windows_out_dropped"] == 995
        never.set()
        assert sender.stop(WAIT_S)
    assert [record.time_unix_nano for record in records(backend)] == [T0_NS + i * WINDOW_NS for i in range(1, 6)]


def test_a_backend_that_never_takes_them_is_given_up() -> None:
    backend = Backend(answer=lambda body: Refusal(401))
    with BACKENDS["http/protobuf"](backend) as port:
        sender = out(port, "http/protobuf", give_up_s=0.0)
        sender.offer(row())
        wait_until("it is given up", lambda: sender.counts()["windows_out_failed"] == 1)
        assert sender.stop(WAIT_S)
