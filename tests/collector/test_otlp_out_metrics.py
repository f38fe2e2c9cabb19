"""Our metrics as OTLP: what a real receiver decodes is what `/metrics` says."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1 import metrics_pb2
from prometheus_client.core import Metric
from support.collector.out_receiver import BACKENDS, Backend, Refusal, silent_until
from support.collector.out_verdicts import KEY, count, judged
from support.commands import wait_until
from support.patience import WAIT_S

from otel_llm.collector.export.metric_export import UNITS, MetricsOut, metrics_data
from otel_llm.collector.telemetry.self_metrics import DecisionLatency, own_families
from otel_llm.config.otlp_target import Headers, OtlpTarget, Protocol
from otel_llm.live.user_metrics import Key, UserMetrics
from otel_llm.shared.otlp_exporters import POINTS_A_REQUEST

START_NS = 1_790_000_000_000_000_000
NOW_NS = START_NS + 60_000_000_000
PROTOCOLS: list[Protocol] = ["grpc", "http/protobuf"]
both = pytest.mark.parametrize("protocol", PROTOCOLS)
CUMULATIVE = metrics_pb2.AGGREGATION_TEMPORALITY_CUMULATIVE

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def counted() -> UserMetrics:
    metrics = UserMetrics()
    for gaps in ([100.0, 20.0, 20.0], [300.0, 7000.0]):
        count(metrics, KEY, *judged(gaps))
    metrics.charge(KEY, 5, 1_500_000_000, 3.75, 0.5)
    return metrics


def families(metrics: UserMetrics) -> list[Metric]:
    latency = DecisionLatency()
    latency.observe_ns(4_000_000)
    own: dict[str, int | float] = {"exports": 3, "lag_seconds": 0.25, "journal_bytes": 2**40, "refused.bad_seq": 2}
    return [*metrics.families(), *metrics.gauges({KEY: (1, 1, 0, 0, 0)}), *own_families(own), *latency.families()]


def as_prometheus(metric: metrics_pb2.Metric) -> Samples:
    """Return an OTLP metric's points as Prometheus would write them: buckets added up, `_total` on counters."""
    found: Samples = {}
    name = metric.name
    if metric.HasField("histogram"):
        assert metric.histogram.aggregation_temporality == CUMULATIVE
        for histogram in metric.histogram.data_points:
            labels = {one.key: one.value.string_value for one in histogram.attributes}
            running = 0
            assert len(histogram.bucket_counts) == len(histogram.explicit_bounds) + 1
            for le, number in zip([*map(str, histogram.explicit_bounds), "+Inf"], histogram.bucket_counts, strict=True):
                running += number
                found[f"{name}_bucket", frozenset({**labels, "le": le}.items())] = running
            found[f"{name}_count", frozenset(labels.items())] = histogram.count
            found[f"{name}_sum", frozenset(labels.items())] = histogram.sum
            assert not histogram.HasField("min")
            assert (histogram.start_time_unix_nano, histogram.time_unix_nano) == (START_NS, NOW_NS)
        return found
    points: Iterable[metrics_pb2.NumberDataPoint] = metric.gauge.data_points
    if metric.HasField("sum"):
        assert metric.sum.is_monotonic
        assert metric.sum.aggregation_temporality == CUMULATIVE
        points = metric.sum.data_points
        assert {point.start_time_unix_nano for point in points} <= {START_NS}
        name = name.removesuffix("_total") + "_total"
    for point in points:
        assert point.time_unix_nano == NOW_NS
        labels = {one.key: one.value.string_value for one in point.attributes}
        value = point.as_int if point.HasField("as_int") else point.as_double
        found[name, frozenset(labels.items())] = value
    return found


def received(backend: Backend) -> list[metrics_pb2.Metric]:
    return [
        metric
        for _, body in backend.bodies
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    ]


def as_read(backend: Backend) -> Samples:
    found: Samples = {}
    for metric in received(backend):
        found |= as_prometheus(metric)
    return found


def out(port: int, protocol: Protocol, given: Callable[[], Iterable[Metric]], interval_s: float = 1e6) -> MetricsOut:
    ticks = iter([START_NS])
    made = MetricsOut(
        OtlpTarget(
            endpoint=f"http://127.0.0.1:{port}",
            protocol=protocol,
            headers=Headers((("Api-Key", "k"),)),
            timeout_s=WAIT_S,
        ),
        given,
        now_ns=lambda: next(ticks, NOW_NS),
        instance_id="collector-1",
        interval_s=interval_s,
    )
    made.start()
    return made


@both
def test_a_receiver_reads_what_metrics_says(protocol: Protocol) -> None:
    backend, given = Backend(), families(counted())
    with BACKENDS[protocol](backend) as port:
        sender = out(port, protocol, lambda: given)
        sender.stop(WAIT_S)
    expected = {
        (sample.name, frozenset(sample.labels.items())): sample.value for family in given for sample in family.samples
    }
    assert as_read(backend) == expected
    assert sender.counts() == {"metrics_out_sent": 1, "metrics_out_failed": 0}
    assert {signal for signal, _ in backend.bodies} == {"metrics"}
    assert backend.headers[0]["api-key"] == "k"
    (resource,) = ExportMetricsServiceRequest.FromString(backend.bodies[0][1]).resource_metrics
    attributes = {one.key: one.value.string_value for one in resource.resource.attributes}
    assert attributes["service.name"] == "otel-llm-collector"
    assert attributes["service.instance.id"] == "collector-1"
    assert [scope.scope.name for scope in resource.scope_metrics] == ["otel_llm.collector"]


def test_names_are_distinguished_and_units_are_those_of_the_tables() -> None:
    metrics = metrics_data(families(counted()), START_NS, NOW_NS, None).resource_metrics[0].scope_metrics[0].metrics  # type: ignore[arg-type]
    names = [metric.name for metric in metrics]
    assert len(set(names)) == len(names)
    assert [name for name in names if name.endswith("_total")] == ["otel_llm_idle_seconds_total"]
    assert {metric.name: metric.unit for metric in metrics} == {
        name: UNITS[name.removesuffix("_total")] for name in names
    }
    assert set(UNITS) == {name.removesuffix("_total") for name in names}


@both
def test_many_points_go_in_several_requests_and_arrive_once(protocol: Protocol) -> None:
    metrics = UserMetrics()
    keys = [Key("chat", f"model-{number}", "client", "") for number in range(300)]
    for key in keys:
        metrics.charge(key, 1, 0, 0.0, 0.0)
    given = list(metrics.families())
    backend = Backend()
    with BACKENDS[protocol](backend) as port:
        out(port, protocol, lambda: given).stop(WAIT_S)
    points = sum(len(as_prometheus(metric)) for metric in received(backend))
    assert points == len(as_read(backend)) == sum(len(family.samples) for family in given)
    assert backend.attempts > 2
    assert points > POINTS_A_REQUEST


@both
def test_it_is_sent_at_the_interval_and_when_it_stops(protocol: Protocol) -> None:
    backend, metrics = Backend(), counted()
    with BACKENDS[protocol](backend) as port:
        sender = out(port, protocol, lambda: families(metrics), interval_s=0.01)
        wait_until("it was sent thrice", lambda: sender.sent >= 3)
        metrics.charge(KEY, 1000, 0, 0.0, 0.0)
        sender.stop(WAIT_S)
        name = "otel_llm_tokens_read_total"
        labels = frozenset({("slo_class", "chat"), ("model", "m"), ("measured_at", "client")})
        assert as_read(backend)[name, labels] == 1005
        attempts = backend.attempts
    assert attempts == sender.sent


@both
def test_a_failure_is_counted_and_the_next_time_is_another_chance(protocol: Protocol) -> None:
    answers = [Refusal(grpc.StatusCode.UNAUTHENTICATED if protocol == "grpc" else 401)]
    backend = Backend(answer=lambda body: answers.pop() if answers else None)
    with BACKENDS[protocol](backend) as port:
        sender = out(port, protocol, lambda: families(counted()), interval_s=0.01)
        wait_until("it works again", lambda: sender.sent >= 1)
        sender.stop(WAIT_S)
    assert sender.failed == 1


def test_an_evaluator_that_cannot_say_is_a_failure_too(caplog: pytest.LogCaptureFixture) -> None:
    requested = threading.Event()

    def busy() -> list[Metric]:
        requested.set()
        raise TimeoutError

    with BACKENDS["grpc"](Backend()) as port, caplog.at_level(logging.ERROR):
        sender = out(port, "grpc", busy, interval_s=0.01)
        wait_until("it failed often", lambda: sender.failed >= 3)
        sender.stop(WAIT_S)
    # The SDK's own log may still hear of another test's exporter.
    assert sum(record.name.startswith("otel_llm.") for record in caplog.records) == 1


@both
def test_a_stop_does_not_wait_for_a_backend_that_does_not_answer(protocol: Protocol) -> None:
    never = threading.Event()
    backend = Backend(answer=silent_until(never))
    with ExitStack() as running:
        running.callback(never.set)
        port = running.enter_context(BACKENDS[protocol](backend))
        running.callback(never.set)
        sender = out(port, protocol, lambda: families(counted()), interval_s=0.01)
        wait_until("it has one", lambda: backend.attempts == 1)
        sender.stop(0.05)
        assert sender.sent == 0
