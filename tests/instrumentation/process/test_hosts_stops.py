"""A graceful stop in mid-stream: every stream's tokens and its end reach the endpoint before the process is gone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.hosts.serving import eventually, serving
from support.hosts.told import told
from support.otlp_receiver import GrpcReceiver
from support.sse_server import DONE, Gate, Reply, SseServer, chunk, whole, words

BEFORE, AFTER, STREAMS = 30, 20, 3
LENGTH = sum(len(f"w{i} ") for i in range(BEFORE))

HOSTS = [
    pytest.param("uvicorn", ["--timeout-graceful-shutdown", "{grace}"], id="uvicorn"),
    pytest.param("uvicorn", ["--timeout-graceful-shutdown", "{grace}", "--workers", "2"], id="uvicorn-2-workers"),
    pytest.param(
        "gunicorn", ["-k", "gthread", "--threads", "8", "--graceful-timeout", "{grace}"], id="gunicorn-threads"
    ),
    pytest.param("gunicorn", ["-k", "gevent", "--graceful-timeout", "{grace}"], id="gunicorn-gevent"),
    pytest.param("gunicorn-asgi", ["-k", "asgi", "--graceful-timeout", "{grace}"], id="gunicorn-asgi"),
    pytest.param("hypercorn", ["--graceful-timeout", "{grace}"], id="hypercorn"),
]


def stopped(
    server: str, options: list[str], grace_s: int, during: Callable[[Gate], None], *, pause_s: float
) -> list[tuple[str, str | None, int]]:
    """Stop a server with streams in their middle, do something during its grace, and return its record of each.

    The endpoint takes each message after a pause: the last segments are still queued when the last stream ends.
    """
    gate = Gate()
    long = Reply([*words(BEFORE), gate, *words(AFTER), chunk(finish="stop"), DONE])
    with SseServer({"long": long, "short": whole(1)}) as model, GrpcReceiver() as receiver:
        receiver.pause_s = pause_s

        def rows() -> list[tuple[str, str | None, int]]:
            return [row for row in told(receiver.spans()) if row[0] == "long"]

        environment = {
            "GATEWAY_UPSTREAM": model.url,
            "GATEWAY_RECORD": "inside",
            "GRPC_VERBOSITY": "NONE",
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.endpoint,
        }
        options = [option.format(grace=grace_s) for option in options]
        with serving(server, environment, options=options) as host:
            host.read("short")  # its worker is there, not only its listener
            streams = [host.open("long") for _ in range(STREAMS)]
            for stream in streams:
                stream.read(LENGTH)
            host.terminate()
            during(gate)
            for stream in streams:
                stream.rest()
            host.wait()
            gate.open()
            eventually(lambda: [outcome is not None for _, outcome, _ in rows()] == [True] * STREAMS)  # the last pause
        return rows()


@pytest.mark.parametrize(("server", "options"), HOSTS)
def test_streams_that_end_within_the_grace_are_told_whole(server: str, options: list[str]) -> None:
    assert stopped(server, options, 60, Gate.open, pause_s=0.5) == [("long", "completed", BEFORE + AFTER)] * STREAMS


@pytest.mark.parametrize(("server", "options"), HOSTS)
def test_streams_that_the_grace_cuts_are_told_as_far_as_they_came(server: str, options: list[str]) -> None:
    # gunicorn kills its worker a second after we end the streams: most of it is for a machine that is busy.
    rows = stopped(server, options, 2, lambda gate: None, pause_s=0.1)
    assert [(model, tokens) for model, _, tokens in rows] == [("long", BEFORE)] * STREAMS
    assert {outcome for _, outcome, _ in rows} <= {"cancelled", "abandoned"}
