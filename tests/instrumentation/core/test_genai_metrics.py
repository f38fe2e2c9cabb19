"""The histograms: their names, their values by the clock of the test, and that none is recorded unasked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from opentelemetry import context as otel_context
from opentelemetry.metrics import NoOpMeterProvider, get_meter_provider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.instrumentation.fake_environment import MS, OFFSET_NS, FakeEnvironment, WordReader
from support.logs import ours
from support.patience import WAIT_S
from support.sse_server import Reply, SseServer, chunk, whole

import otel_llm
from otel_llm import semconv
from otel_llm.export.records import REASONING, AttributeValue
from otel_llm.instrumentation.core.committed_request import Request
from otel_llm.instrumentation.core.genai_metrics import INSTRUMENTS, Metrics
from otel_llm.instrumentation.core.recording import Recording
from otel_llm.instrumentation.core.renamed_attributes import Names
from otel_llm.instrumentation.process import runtime

IDENTITY = {
    semconv.GEN_AI_OPERATION_NAME: "chat",
    semconv.GEN_AI_PROVIDER_NAME: "mine",
    semconv.GEN_AI_REQUEST_MODEL: "m",
}
CLIENT = {semconv.CLIENT_DURATION, semconv.CLIENT_FIRST_CHUNK}
SERVER = {semconv.SERVER_DURATION, semconv.SERVER_FIRST_TOKEN, semconv.SERVER_OUTPUT_TOKEN}
OURS = {semconv.FIRST_TOKEN, semconv.FIRST_VISIBLE}
NEW_CLIENT = {"gen_ai.client.inference.duration", "gen_ai.client.inference.time_to_first_chunk"}


class Meters:
    """A MeterProvider of the SDK, and what it got."""

    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider([self.reader], shutdown_on_exit=False)

    def points(self) -> dict[str, list[HistogramDataPoint]]:
        data = self.reader.get_metrics_data()
        if data is None:
            return {}
        found: dict[str, list[HistogramDataPoint]] = {}
        for resource in data.resource_metrics:
            for scope in resource.scope_metrics:
                assert scope.scope.name == "otel_llm"
                for metric in scope.metrics:
                    assert metric.unit == "s"
                    points = [point for point in metric.data.data_points if isinstance(point, HistogramDataPoint)]
                    found.setdefault(metric.name, []).extend(points)
        return found

    def point(self, name: str) -> HistogramDataPoint:
        [only] = self.points()[name]
        return only


@pytest.fixture
def meters() -> Iterator[Meters]:
    made = Meters()
    yield made
    made.provider.shutdown()


class MeteredHost(FakeEnvironment):
    """A process with a meter, in which the test is the clock."""

    def __init__(self, meters: Meters, names: Names = "1.41", *, chunks: bool = False) -> None:
        super().__init__()
        self.metrics = Metrics(meters.provider, names, chunks=chunks)

    def begin(self, *, server: bool = False, choices: int = 1) -> Recording:
        ours = {semconv.SLO_CLASS: "chat", semconv.MEASURED_AT: "server" if server else "client"}
        more: dict[str, AttributeValue] = {**IDENTITY, semconv.GEN_AI_USAGE_INPUT_TOKENS: 1234}
        request = Request("chat m", self.now_ns, OFFSET_NS, choices=choices, ours=ours, gen_ai=more, server=server)
        recording = Recording(self, request, WordReader())
        recording.announce(otel_context.get_current())
        return recording

    def end(self, recording: Recording, outcome: str = "completed", error: str | None = None) -> None:
        recording.ended(outcome, error)
        assert self.metrics is not None
        self.metrics.step()


def token(host: FakeEnvironment, recording: Recording, ms: float, kind: int | None = None) -> None:
    host.at(ms)
    recording.append(host.now_ns if kind is None else (host.now_ns, ((0, kind, 1, False),)))


def framing(host: FakeEnvironment, recording: Recording, ms: float) -> None:
    host.at(ms)
    recording.append((host.now_ns, ()))


def test_a_clients_request(meters: Meters) -> None:
    host = MeteredHost(meters)
    recording = host.begin()
    framing(host, recording, 30)  # the role
    token(host, recording, 100, REASONING)
    host.step()
    token(host, recording, 400)
    token(host, recording, 405)
    host.at(500)
    host.end(recording)
    points = meters.points()
    assert points.keys() == CLIENT | OURS
    sums = {name: round(found[0].sum, 9) for name, found in points.items()}
    assert sums == {
        semconv.CLIENT_DURATION: 0.5,
        semconv.CLIENT_FIRST_CHUNK: 0.03,
        semconv.FIRST_TOKEN: 0.1,
        semconv.FIRST_VISIBLE: 0.4,
    }
    assert all(dict(points[name][0].attributes or {}) == IDENTITY for name in CLIENT)
    ours = {**IDENTITY, semconv.SLO_CLASS: "chat", semconv.MEASURED_AT: "client"}
    assert all(dict(points[name][0].attributes or {}) == ours for name in OURS)


def test_a_servers_request(meters: Meters) -> None:
    host = MeteredHost(meters)
    recording = host.begin(server=True)
    for i in range(11):
        token(host, recording, 200 + 4 * i)
    host.at(240)
    host.end(recording)
    points = meters.points()
    assert points.keys() == SERVER | OURS
    assert round(points[semconv.SERVER_FIRST_TOKEN][0].sum, 9) == 0.2
    mean = points[semconv.SERVER_OUTPUT_TOKEN][0]
    assert round(mean.sum, 9) == 0.004
    assert (mean.attributes or {})[semconv.TOKEN_BASIS] == "chunk"
    assert (points[semconv.FIRST_TOKEN][0].attributes or {})[semconv.MEASURED_AT] == "server"


@pytest.mark.parametrize("outcome", ["error", "cancelled"])
def test_a_request_that_was_not_completed_has_a_duration_and_no_server_latency(outcome: str, meters: Meters) -> None:
    host = MeteredHost(meters)
    recording = host.begin(server=True)
    token(host, recording, 100)
    token(host, recording, 110)
    host.end(recording, outcome, "EngineDead" if outcome == "error" else None)
    assert meters.points().keys() == {semconv.SERVER_DURATION} | OURS
    expected = {**IDENTITY, **({semconv.ERROR_TYPE: "EngineDead"} if outcome == "error" else {})}
    assert dict(meters.point(semconv.SERVER_DURATION).attributes or {}) == expected


def test_of_a_reply_without_tokens_no_time_is_made_up(meters: Meters) -> None:
    host = MeteredHost(meters)
    recording = host.begin()
    host.at(50)
    host.end(recording)
    assert meters.points().keys() == {semconv.CLIENT_DURATION}


def test_reasoning_and_tool_calls_are_not_seen(meters: Meters) -> None:
    host = MeteredHost(meters)
    recording = host.begin()
    token(host, recording, 10, REASONING)
    host.end(recording)
    assert semconv.FIRST_TOKEN in meters.points()
    assert semconv.FIRST_VISIBLE not in meters.points()


def test_several_choices_have_no_time_per_token_of_the_request(meters: Meters) -> None:
    host = MeteredHost(meters)
    recording = host.begin(server=True, choices=2)
    token(host, recording, 10)
    token(host, recording, 20)
    host.end(recording)
    assert semconv.SERVER_OUTPUT_TOKEN not in meters.points()


@pytest.mark.parametrize(
    ("names", "expected"), [("1.41", CLIENT), ("old", CLIENT), ("new", NEW_CLIENT), ("both", CLIENT | NEW_CLIENT)]
)
def test_the_names_are_those_that_the_application_chose(names: Names, expected: set[str], meters: Meters) -> None:
    host = MeteredHost(meters, names)
    recording = host.begin()
    token(host, recording, 10)
    host.end(recording)
    assert meters.points().keys() == expected | OURS


@pytest.mark.parametrize("cuts", [(), (2,), (1, 2, 3, 4)], ids=str)
def test_the_time_between_chunks_is_the_same_however_they_are_cut(cuts: tuple[int, ...], meters: Meters) -> None:
    host = MeteredHost(meters, chunks=True)
    recording = host.begin()
    for i, ms in enumerate([100, 102, 105, 109, 139]):
        if i in cuts:
            host.flusher.step(host.now_ns, complete=True)
        if i == 0:
            framing(host, recording, ms)
        else:
            token(host, recording, ms)
    host.end(recording)
    point = meters.point(semconv.CLIENT_OUTPUT_CHUNK)
    assert (point.count, round(point.sum, 9), point.min, point.max) == (4, 0.039, 0.002, 0.03)
    # 2, 3, 4 and 30 ms: each has a bucket of its own
    bounds = [round(bound, 6) for bound in point.explicit_bounds]
    assert sorted(point.bucket_counts) == [0] * (len(point.bucket_counts) - 4) + [1] * 4
    assert {0.002, 0.003, 0.004, 0.03} <= set(bounds)


@pytest.mark.parametrize("asked", [False, True])
def test_the_time_between_chunks_is_measured_only_where_asked_for(meters: Meters, asked: bool) -> None:
    host = MeteredHost(meters, chunks=asked)
    recording = host.begin()
    token(host, recording, 10)
    token(host, recording, 20)
    host.at(250)
    host.step()
    assert host.metrics is not None
    assert host.metrics.waiting == asked  # nor is it kept
    host.end(recording)
    assert (semconv.CLIENT_OUTPUT_CHUNK in meters.points()) == asked


def test_buckets_hold_those_of_the_conventions_and_tell_a_fast_decoder_apart() -> None:
    duration = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
    first = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
    each = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
    named = {name: tuple(round(bound, 6) for bound in bounds) for name, (_, bounds) in INSTRUMENTS.items()}
    for name in (semconv.CLIENT_DURATION, semconv.CLIENT_FIRST_CHUNK, semconv.SERVER_DURATION):
        assert named[name] == duration
    assert named[semconv.SERVER_FIRST_TOKEN] == first
    assert set(duration) <= set(named[semconv.CLIENT_OUTPUT_CHUNK])
    assert set(each) <= set(named[semconv.SERVER_OUTPUT_TOKEN])
    for name in (semconv.CLIENT_OUTPUT_CHUNK, semconv.SERVER_OUTPUT_TOKEN):
        assert sum(0.002 <= bound <= 0.01 for bound in named[name]) >= 6
    assert all(list(bounds) == sorted(set(bounds)) for bounds in named.values())


def test_values_lead_to_the_request_by_exemplars(meters: Meters) -> None:
    host = MeteredHost(meters)
    recording = host.begin()
    token(host, recording, 10)
    host.end(recording)
    context = recording.context
    assert context is not None
    [exemplar] = meters.point(semconv.FIRST_TOKEN).exemplars
    assert (exemplar.trace_id, exemplar.span_id) == (context.trace_id, context.span_id)


def test_a_reader_records_nothing_itself(meters: Meters) -> None:
    host = MeteredHost(meters)
    recording = host.begin()
    token(host, recording, 10)
    recording.ended("completed")
    assert meters.points() == {}
    assert host.metrics is not None
    host.metrics.step()
    assert meters.points() != {}


@pytest.fixture
def client(server: SseServer) -> Iterator[Any]:
    server.replies["m"] = whole(3)
    server.replies["bad"] = Reply(status=500)
    server.replies["thinking"] = Reply(
        [chunk({"role": "assistant"}), chunk({"reasoning_content": "hm"}), chunk(finish="stop")]
    )
    with openai.OpenAI(api_key="none", base_url=server.url, max_retries=0) as client:
        yield client


def consume(client: Any, model: str = "m") -> None:
    for _ in client.chat.completions.create(model=model, messages=[], stream=True):
        pass


def test_the_applications_provider_gets_them(client: Any, server: SseServer, meters: Meters) -> None:
    otel_llm.instrument(exporter=InMemorySpanExporter(), meter_provider=meters.provider, metrics="chunks")
    try:
        consume(client)
        with pytest.raises(openai.InternalServerError):
            consume(client, "bad")
        assert otel_llm.flush()
        points = meters.points()
    finally:
        otel_llm.uninstrument()
    assert points.keys() == CLIENT | OURS | {semconv.CLIENT_OUTPUT_CHUNK}
    assert sum(point.count for point in points[semconv.CLIENT_OUTPUT_CHUNK]) == 4  # role, three words, the end
    durations = {
        (point.attributes or {}).get(semconv.GEN_AI_REQUEST_MODEL): point for point in points[semconv.CLIENT_DURATION]
    }
    good, bad = dict(durations["m"].attributes or {}), dict(durations["bad"].attributes or {})
    port = int(server.url.rsplit(":", 1)[1].split("/")[0])
    assert good == {
        semconv.GEN_AI_OPERATION_NAME: "chat",
        semconv.GEN_AI_PROVIDER_NAME: "openai",
        semconv.GEN_AI_REQUEST_MODEL: "m",
        semconv.GEN_AI_RESPONSE_MODEL: "served",
        semconv.SERVER_ADDRESS: "127.0.0.1",
        semconv.SERVER_PORT: port,
    }
    assert bad[semconv.ERROR_TYPE] == "openai.InternalServerError"


def test_what_is_recorded_is_told_when_we_stop(client: Any, meters: Meters) -> None:
    otel_llm.instrument(exporter=InMemorySpanExporter(), meter_provider=meters.provider)
    consume(client)
    otel_llm.uninstrument()
    assert meters.point(semconv.CLIENT_DURATION).count == 1


def test_a_process_that_ends_tells_what_it_measured(server: SseServer) -> None:
    server.replies["m"] = whole(3)
    code = f"""
import openai, otel_llm
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter, PeriodicExportingMetricReader
otel_llm.instrument()
metrics.set_meter_provider(MeterProvider([PeriodicExportingMetricReader(ConsoleMetricExporter(), 1e6)]))  # after us
client = openai.OpenAI(api_key="none", base_url={server.url!r})
list(client.chat.completions.create(model="m", messages=[], stream=True))
left = client.chat.completions.create(model="m", messages=[], stream=True)
next(left)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"},
        capture_output=True, text=True, timeout=WAIT_S, check=True,
    )  # fmt: skip
    told = json.loads(done.stdout)["resource_metrics"][0]["scope_metrics"][0]["metrics"]
    [duration] = [metric for metric in told if metric["name"] == semconv.CLIENT_DURATION]
    assert sum(point["count"] for point in duration["data"]["data_points"]) == 2


def test_beside_another_instrumentation_only_ours_are_made(client: Any, meters: Meters) -> None:
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("theirs")
    otel_llm.instrument(exporter=InMemorySpanExporter(), meter_provider=meters.provider, metrics="chunks")
    try:
        with tracer.start_as_current_span("chat", attributes={semconv.GEN_AI_OPERATION_NAME: "chat"}):
            consume(client)
        assert otel_llm.flush()
        assert meters.points().keys() == OURS
    finally:
        otel_llm.uninstrument()


def test_they_can_be_switched_off(client: Any, meters: Meters) -> None:
    otel_llm.instrument(exporter=InMemorySpanExporter(), meter_provider=meters.provider, metrics="off")
    try:
        consume(client)
        assert otel_llm.flush()
        assert meters.points() == {}
    finally:
        otel_llm.uninstrument()


@pytest.mark.parametrize("provider", [None, NoOpMeterProvider()], ids=["none", "no-op"])
def test_without_a_provider_nothing_is_kept(provider: Any, client: Any) -> None:
    otel_llm.instrument(exporter=InMemorySpanExporter(), meter_provider=provider, metrics="chunks")
    try:
        running = runtime.running()
        assert running is not None
        assert running.metrics is not None
        assert not running.metrics.wanted
        consume(client)
        assert running.metrics.waiting == 0
        assert otel_llm.flush()
    finally:
        otel_llm.uninstrument()
    assert type(get_meter_provider()).__name__ == "_ProxyMeterProvider"  # the name by which it is known to be none


def test_a_provider_that_breaks_costs_one_warning(
    client: Any, meters: Meters, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("their bug")

    monkeypatch.setattr(meters.provider, "get_meter", broken)
    exporter = InMemorySpanExporter()
    otel_llm.instrument(exporter=exporter, meter_provider=meters.provider)
    try:
        consume(client)
        consume(client)
        assert otel_llm.flush()
        assert len(exporter.get_finished_spans()) >= 4
    finally:
        otel_llm.uninstrument()
    assert len(ours(caplog)) == 1


def test_a_word_that_is_none_of_the_settings_is_refused() -> None:
    with pytest.raises(ValueError, match="metrics="):
        otel_llm.instrument(metrics="all")  # type: ignore[arg-type]
    assert runtime.running() is None


def test_the_request_span_says_both_first_tokens() -> None:
    host = FakeEnvironment()
    recording = host.record()
    framing(host, recording, 5)
    token(host, recording, 10, REASONING)
    token(host, recording, 40)
    host.at(50)
    recording.ended("completed")
    [request] = host.requests()
    said = {name: request.attributes[name] for name in (*OURS, semconv.GEN_AI_TIME_TO_FIRST_CHUNK)}
    assert said == {
        semconv.FIRST_TOKEN: 10 * MS / 1e9,
        semconv.FIRST_VISIBLE: 40 * MS / 1e9,
        semconv.GEN_AI_TIME_TO_FIRST_CHUNK: 5 * MS / 1e9,
    }
