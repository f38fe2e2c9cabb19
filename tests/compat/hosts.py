"""Serving processes of every worker model, bare and recorded: streams pass, rows come once, and what readers notice.

Each server streams a model's reply on to several clients at once, with an endpoint of the telemetry that answers, one
that accepts and never answers, and one that refuses.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from support.hosts.serving import Read, SilentEndpoint, eventually, serving
from support.hosts.told import told
from support.otlp_receiver import GrpcReceiver
from support.sse_server import DONE, Reply, SseServer, Wait, chunk, whole, words

from compat.environments import Environment

TOKENS, STREAMS, PACE_S = 40, 4, 0.01
BODY = b"".join(b"w%d " % i for i in range(TOKENS))
ENDPOINTS = ("answers", "silent", "refuses")
WAYS = ("inside", "agent")
"""`otel_llm.instrument()` in the application, and `opentelemetry-instrument`."""

COLUMNS = (
    *("server", "version", "workers", "recorded by", "endpoint"),
    *("streams", "rows", "added TTFT ms", "added largest gap ms"),
)

CURRENT = Environment("hosts", ("gunicorn", "gevent", "uvicorn", "uvicorn-worker", "hypercorn", "openai>=3"))
EVENTLET = Environment("hosts-eventlet", ("gunicorn<26", "eventlet", "openai>=3"))  # the last gunicorn that has it


@dataclass(frozen=True)
class Host:
    """One way to serve: a server of `support.hosts.serving`, its options, and where it is installed."""

    name: str
    server: str
    options: tuple[str, ...] = ()
    environment: Environment = CURRENT
    package: str = "gunicorn"


HOSTS = (
    Host("sync, 4 workers", "gunicorn", ("-k", "sync", "-w", "4")),
    Host("gthread", "gunicorn", ("-k", "gthread", "--threads", "8")),
    Host("gthread, --preload", "gunicorn", ("-k", "gthread", "--threads", "8", "--preload")),
    Host("gevent", "gunicorn", ("-k", "gevent")),
    Host("gevent, --preload", "gunicorn", ("-k", "gevent", "--preload")),
    Host("eventlet", "gunicorn", ("-k", "eventlet"), EVENTLET),
    Host("asgi", "gunicorn-asgi", ("-k", "asgi")),
    Host("uvicorn_worker", "gunicorn-asgi", ("-k", "uvicorn_worker.UvicornWorker")),
    Host("its own server", "gevent", package="gevent"),
    Host("1 worker", "uvicorn", package="uvicorn"),
    Host("2 workers", "uvicorn", ("--workers", "2"), package="uvicorn"),
    Host("1 worker", "hypercorn", package="hypercorn"),
)


@dataclass(frozen=True)
class Measured:
    """What the clients of one server saw: medians of the second round, seconds; `rows` of both, None if unseen."""

    first_s: float
    gap_s: float
    whole: bool
    rows: list[tuple[str, str | None, int]] | None


def _reply() -> Reply:
    paced = [step for word in words(TOKENS) for step in (Wait(PACE_S), word)]
    return Reply([chunk({"role": "assistant", "content": ""}), *paced, chunk(finish="stop"), DONE])


@contextlib.contextmanager
def _endpoint(kind: str) -> Iterator[tuple[str, GrpcReceiver | None]]:
    if kind == "answers":
        with GrpcReceiver() as receiver:
            yield receiver.endpoint, receiver
    elif kind == "silent":
        with SilentEndpoint() as silent:
            yield silent.endpoint, None
    else:
        yield "http://127.0.0.1:9", None


def measure(host: Host, way: str, endpoint: str, model: SseServer) -> Measured:
    """Serve two rounds of streams and return what their clients saw."""
    with _endpoint(endpoint) as (url, receiver):
        environment = {
            "GATEWAY_UPSTREAM": model.url,
            "GATEWAY_RECORD": way,
            "GRPC_VERBOSITY": "NONE",
            "OTEL_EXPORTER_OTLP_ENDPOINT": url,
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_LOGS_EXPORTER": "none",
            "OTEL_SERVICE_NAME": "hosts",
        }
        python = str(host.environment.python)
        with serving(host.server, environment, python=python, options=host.options, agent=way == "agent") as process:
            process.read("short")  # its worker is there, and has imported what it needs
            reads = [read for _ in range(2) for read in process.read_all("m", STREAMS)]
            rows = None
            if receiver is not None and way != "bare":
                spans = receiver.spans
                eventually(lambda: sum(outcome is not None for _, outcome, _ in told(spans())) == 2 * STREAMS + 1)
                rows = [row for row in told(spans()) if row[0] == "m"]
    second = reads[STREAMS:]
    return Measured(
        statistics.median(read.first_s for read in second),
        statistics.median(read.gap_s for read in second),
        all(_is_whole(read) for read in reads),
        rows,
    )


def _is_whole(read: Read) -> bool:
    return read.whole and read.body == BODY


def run(hosts: Sequence[Host] = HOSTS) -> tuple[list[str], int]:
    """Return the table as lines of Markdown, and how many promises were not kept."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
    failed = 0
    with SseServer({"m": _reply(), "short": whole(1)}) as model:
        for host in hosts:
            host.environment.make()
            version = host.environment.version(host.package)
            bare = measure(host, "bare", "answers", model)
            for way in WAYS:
                for endpoint in ENDPOINTS:
                    try:
                        seen = measure(host, way, endpoint, model)
                    except (AssertionError, OSError, subprocess.SubprocessError) as error:
                        cells = [f"failed: {type(error).__name__}", "-", "-", "-"]
                        failed += 1
                    else:
                        once = seen.rows is None or seen.rows == [("m", "completed", TOKENS)] * (2 * STREAMS)
                        failed += not (seen.whole and once)
                        cells = [
                            "whole" if seen.whole else "NOT WHOLE",
                            "-" if seen.rows is None else "once" if once else f"NOT ONCE: {seen.rows}",
                            f"{(seen.first_s - bare.first_s) * 1000:+.0f}",
                            f"{(seen.gap_s - bare.gap_s) * 1000:+.0f}",
                        ]
                    row = [host.package, version, host.name, _WORDS[way], endpoint, *cells]
                    lines.append("| " + " | ".join(row) + " |")
                    print(lines[-1], flush=True)
    return lines, failed


_WORDS = {"inside": "`instrument()`", "agent": "`opentelemetry-instrument`"}
