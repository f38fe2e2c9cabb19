from __future__ import annotations

import gzip
import resource
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event

import grpc
import pytest
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from support.collector.fake_evaluator import FakeEvaluator
from support.otlp import T0_NS, export, segment_span
from support.patience import WAIT_S

from otel_llm.collector.receive.errors import BusyError
from otel_llm.collector.receive.grpc_worker.grpc_receiver import EXPORT, GrpcReceiver
from otel_llm.collector.receive.senders import Sender
from otel_llm.collector.settings import Limits
from otel_llm.journal.journal_errors import JournalError
from otel_llm.shared.errors import AddressError, TooLargeError
from otel_llm.shared.web.address import Address

LOCAL = Address("127.0.0.1", 0)
RAW = export(segment_span(1, 0, [T0_NS])).SerializeToString()


@pytest.fixture
def behind() -> FakeEvaluator:
    return FakeEvaluator()


@pytest.fixture
def receiver(behind: FakeEvaluator) -> Iterator[GrpcReceiver]:
    made = GrpcReceiver(LOCAL, behind, limits=Limits(message_bytes=2**20))
    made.start()
    yield made
    made.stop(grace_s=0)


@pytest.fixture
def channel(receiver: GrpcReceiver) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(str(receiver.address), options=[("grpc.max_send_message_length", -1)]) as made:
        yield made


def call(channel: grpc.Channel, raw: bytes, method: str = EXPORT, *, zipped: bool = False) -> bytes:
    compression = grpc.Compression.Gzip if zipped else grpc.Compression.NoCompression
    answer: bytes = channel.unary_unary(method)(raw, timeout=WAIT_S, compression=compression, wait_for_ready=True)
    return answer


def refused(channel: grpc.Channel, raw: bytes, method: str = EXPORT, *, zipped: bool = False) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as raised:
        call(channel, raw, method, zipped=zipped)
    return raised.value


def details(error: grpc.RpcError) -> Status:
    (blob,) = (value for key, value in error.trailing_metadata() if key == "grpc-status-details-bin")
    return Status.FromString(blob)


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_the_standard_exporter_delivers(
    receiver: GrpcReceiver, behind: FakeEvaluator, compression: grpc.Compression
) -> None:
    exporter = OTLPSpanExporter(endpoint=f"http://{receiver.address}", insecure=True, compression=compression)
    provider = TracerProvider(
        resource=Resource({"service.name": "app"}), span_limits=SpanLimits(max_events=3000), shutdown_on_exit=False
    )
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    span = provider.get_tracer("t").start_span("otel_llm.segment", start_time=T0_NS)
    for i in range(2000):
        span.add_event("token", timestamp=T0_NS + i)
    span.end(T0_NS + 5000)
    provider.shutdown()
    (received,) = behind.spans
    assert [event.time_unix_nano for event in received.events] == [T0_NS + i for i in range(2000)]
    assert behind.messages[0].resource_spans[0].resource.attributes[0].value.string_value == "app"


def test_the_answer_is_an_otlp_response(channel: grpc.Channel, behind: FakeEvaluator) -> None:
    assert ExportTraceServiceResponse.FromString(call(channel, RAW)) == ExportTraceServiceResponse()
    assert ExportTraceServiceResponse.FromString(call(channel, b"")) == ExportTraceServiceResponse()
    mixed = export(segment_span(1, 0), segment_span(None, 0), segment_span(-1, 0)).SerializeToString()
    answer = ExportTraceServiceResponse.FromString(call(channel, mixed))
    assert answer.partial_success.rejected_spans == 2
    assert answer.partial_success.error_message == "missing_seq, bad_seq"
    assert len(behind.spans) == 4


def test_bytes_that_are_no_export(channel: grpc.Channel, behind: FakeEvaluator) -> None:
    error = refused(channel, b"\xff\xff\xff")
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "not an OTLP trace export request" in error.details()
    assert details(error).code == 3
    assert behind.messages == []
    call(channel, RAW)  # and goes on
    assert len(behind.messages) == 1


@pytest.mark.parametrize(
    ("failure", "code", "retry_s"),
    [
        (JournalError("No space left"), grpc.StatusCode.UNAVAILABLE, 5),
        (BusyError("the evaluator is behind"), grpc.StatusCode.RESOURCE_EXHAUSTED, 1),
        (TooLargeError("too large"), grpc.StatusCode.RESOURCE_EXHAUSTED, None),
    ],
)
def test_refusals(
    channel: grpc.Channel, behind: FakeEvaluator, failure: Exception, code: grpc.StatusCode, retry_s: int | None
) -> None:
    behind.fail_with = failure
    error = refused(channel, RAW)
    assert (error.code(), error.details()) == (code, str(failure))
    infos = details(error).details
    if retry_s is None:
        assert not infos
    else:
        info = RetryInfo()
        infos[0].Unpack(info)
        assert info.retry_delay.seconds == retry_s


def test_a_bug_of_ours_is_logged_and_not_reported(
    channel: grpc.Channel, behind: FakeEvaluator, caplog: pytest.LogCaptureFixture
) -> None:
    behind.fail_with = KeyError("secret")
    error = refused(channel, RAW)
    assert (error.code(), error.details()) == (grpc.StatusCode.INTERNAL, "internal error")
    assert "secret" in caplog.text
    behind.fail_with = None
    call(channel, RAW)


def test_other_signals_are_unimplemented(channel: grpc.Channel, receiver: GrpcReceiver) -> None:
    for signal in ("metrics", "logs"):
        service = f"/opentelemetry.proto.collector.{signal}.v1.{signal.capitalize()}Service/Export"
        error = refused(channel, b"", service)
        assert error.code() == grpc.StatusCode.UNIMPLEMENTED
        assert "traces only" in error.details()
    assert refused(channel, b"", "/other.Service/Method").code() == grpc.StatusCode.UNIMPLEMENTED
    exporter = OTLPMetricExporter(endpoint=f"http://{receiver.address}", insecure=True)
    assert exporter.export(MetricsData(resource_metrics=[])) == MetricExportResult.FAILURE
    exporter.shutdown()


def test_size_limits_also_once_decompressed(channel: grpc.Channel, behind: FakeEvaluator) -> None:
    assert refused(channel, bytes(2**20 + 1)).code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    bomb = bytes(2**28)
    with_bomb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert len(gzip.compress(bomb, 1)) < 2**22
    error = refused(channel, bomb, zipped=True)
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    # The client holds the bomb, in this same process; the server does not once more.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - max(before, with_bomb) < 2**19
    assert behind.messages == []
    call(channel, RAW, zipped=True)


def test_a_port_in_use_is_reported_with_its_remedy(receiver: GrpcReceiver) -> None:
    second = GrpcReceiver(receiver.address, FakeEvaluator())
    with pytest.raises(AddressError, match=rf"127\.0\.0\.1:{receiver.port} is in use .* choose --grpc HOST:PORT"):
        second.bind()
    second.stop(0)
    with socket.create_server(("127.0.0.1", 0)) as other:
        third = GrpcReceiver(Address("127.0.0.1", other.getsockname()[1]), FakeEvaluator())
        with pytest.raises(AddressError, match="is in use"):
            third.start()
        third.stop(0)


def test_an_address_that_is_not_ours() -> None:
    receiver = GrpcReceiver(Address("192.0.2.1", 0), FakeEvaluator())
    with pytest.raises(AddressError, match=r"cannot listen at 192\.0\.2\.1:0: .* --grpc HOST:PORT"):
        receiver.bind()
    receiver.stop(0)


def test_the_port_is_taken_before_anything_is_served(behind: FakeEvaluator) -> None:
    receiver = GrpcReceiver(LOCAL, behind)
    assert receiver.port == 0
    receiver.bind()
    receiver.bind()
    port = receiver.port
    assert port > 0
    receiver.start()
    assert receiver.port == port
    with grpc.insecure_channel(str(receiver.address)) as channel:
        call(channel, RAW)
    receiver.stop(0)
    receiver.stop(0)


def test_exports_are_handled_at_once() -> None:
    both = Barrier(2)

    def meet(_raw: bytes, _sender: Sender) -> bytes:
        both.wait(WAIT_S)
        return b""

    receiver = GrpcReceiver(LOCAL, meet, limits=Limits(concurrent_exports=2))
    receiver.start()
    with grpc.insecure_channel(str(receiver.address)) as channel, ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda _: call(channel, RAW), range(2))) == [b"", b""]
    receiver.stop(0)


def test_stopping_answers_what_was_begun() -> None:
    began, go_on = Event(), Event()

    def slow(_raw: bytes, _sender: Sender) -> bytes:
        began.set()
        assert go_on.wait(WAIT_S)
        return b""

    receiver = GrpcReceiver(LOCAL, slow)
    receiver.start()
    with grpc.insecure_channel(str(receiver.address)) as channel, ThreadPoolExecutor(2) as pool:
        answer = pool.submit(call, channel, RAW)
        assert began.wait(WAIT_S)
        stopped = pool.submit(receiver.stop, 30)
        assert not stopped.done()
        go_on.set()
        assert answer.result(WAIT_S) == b""
        stopped.result(WAIT_S)


def test_many_clients_at_once(receiver: GrpcReceiver, behind: FakeEvaluator) -> None:
    def client(number: int) -> None:
        with grpc.insecure_channel(str(receiver.address)) as channel:
            for seq in range(10):
                call(channel, export(segment_span(seq, 0, request=number)).SerializeToString())

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(client, range(1, 17)))
    assert len({span.span_id for span in behind.spans}) == 160
