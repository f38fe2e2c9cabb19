"""Servers whose workers run greenlets or an event loop: streams pass whatever the endpoint of the telemetry does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.hosts.serving import SilentEndpoint, eventually, serving
from support.hosts.told import told
from support.otlp_receiver import GrpcReceiver
from support.sse_server import SseServer, whole

TOKENS = 40
STREAMS = 4
BODY = b"".join(b"w%d " % i for i in range(TOKENS))

WAYS = [
    pytest.param("gevent", "inside", id="gevent"),
    pytest.param("gevent", "before", id="gevent-instrumented-before-it-patches"),
    pytest.param("gevent", "agent", id="gevent-opentelemetry-instrument"),
    pytest.param("uvicorn", "inside", id="uvicorn"),
    pytest.param("uvicorn", "agent", id="uvicorn-opentelemetry-instrument"),
]


@pytest.fixture(scope="module")
def model() -> Iterator[SseServer]:
    with SseServer({"m": whole(TOKENS)}) as server:
        yield server


def environment(way: str, model: SseServer, endpoint: str) -> dict[str, str]:
    return {
        "GATEWAY_UPSTREAM": model.url,
        "GATEWAY_RECORD": way,
        "GRPC_VERBOSITY": "NONE",
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_LOGS_EXPORTER": "none",
        "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "openai",  # the peers of other tests
        "OTEL_SERVICE_NAME": "hosts",
    }


@pytest.mark.parametrize(("server", "way"), WAYS)
def test_rows_come_once_where_the_endpoint_answers(server: str, way: str, model: SseServer) -> None:
    with GrpcReceiver() as receiver:
        with serving(server, environment(way, model, receiver.endpoint), agent=way == "agent") as host:
            reads = host.read_all("m", STREAMS)
            eventually(lambda: sum(outcome is not None for _, outcome, _ in told(receiver.spans())) == STREAMS)
        assert [read.body for read in reads] == [BODY] * STREAMS
        assert told(receiver.spans()) == [("m", "completed", TOKENS)] * STREAMS


@pytest.mark.parametrize(("server", "way"), WAYS)
def test_streams_pass_where_the_endpoint_accepts_and_never_answers(server: str, way: str, model: SseServer) -> None:
    """A host that waited for the endpoint would wait for longer than its clients do."""
    with SilentEndpoint() as endpoint:
        patient = {**environment(way, model, endpoint.endpoint), "OTEL_EXPORTER_OTLP_TIMEOUT": "600"}
        with serving(server, patient, agent=way == "agent") as host:
            for _ in range(2):  # the exporter is at work by the second time
                reads = host.read_all("m", STREAMS)
                assert [read.body for read in reads] == [BODY] * STREAMS
                endpoint.wait_for_connection()
