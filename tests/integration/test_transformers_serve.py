"""`transformers serve` on the CPU, switched on by one line, and a real OpenAI client: one trace, two rows."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.otlp_receiver import HttpReceiver
from support.patience import WAIT_S
from support.ports import free_ports
from support.requirements import VLLM, require
from support.spans import records_of

import otel_llm
from otel_llm import semconv
from otel_llm.formats.assemble.assembler import Assembler
from otel_llm.formats.assemble.resolved import Assembled
from otel_llm.formats.otlp.export_request import decode

SCRIPT = Path(__file__).parents[2] / "examples" / "h200" / "serve.py"


@dataclass
class Server:
    port: int
    received: HttpReceiver
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def ready(self) -> None:
        """Wait until it serves."""
        limit = time.monotonic() + WAIT_S
        while True:
            with contextlib.suppress(urllib.error.URLError, OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=1)
                return
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            assert time.monotonic() < limit, self.log.read_text()[-3000:]
            time.sleep(0.5)

    def rows(self) -> dict[bytes, Assembled]:
        """Return the server's rows of requests that ended, by trace."""
        assembler = Assembler()
        with self.received.lock:
            messages = list(self.received.messages)
        for message in messages:
            assembler.add(decode(message))
        rows = [row for row in assembler.finish() if row.resolved.outcome != "lost"]
        by_trace = {row.resolved.trace_id: row for row in rows}
        assert len(by_trace) == len(rows), "a request has two rows on the server"
        return by_trace

    def row(self, trace_id: bytes) -> Assembled:
        limit = time.monotonic() + WAIT_S
        while (row := self.rows().get(trace_id)) is None:
            assert time.monotonic() < limit, "the server's row did not arrive"
            time.sleep(0.1)
        return row


WAYS = {
    "generate": (),
    "continuous batching": (
        *("--continuous-batching", "--attn-implementation", "sdpa"),
        *("--cb-block-size", "32", "--cb-num-blocks", "64", "--cb-max-batch-tokens", "128"),
    ),
}


@contextlib.contextmanager
def serving(log: Path, *options: str) -> Iterator[Server]:
    """Run `transformers serve`; it serves once `ready` returned."""
    [port] = free_ports(1)
    command = [
        *(str(VLLM / "bin" / "python"), "-P", str(SCRIPT), "serve", str(VLLM / "tiny"), "--device", "cpu"),
        *("--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", *options),
    ]
    with HttpReceiver() as received, log.open("w") as written:
        environment = {
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "OTEL_EXPORTER_OTLP_ENDPOINT": received.endpoint.removesuffix("/v1/traces"),
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        }
        process = subprocess.Popen(
            command, env=os.environ | environment, stdout=written, stderr=written, start_new_session=True
        )
        try:
            yield Server(port, received, process, log)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(WAIT_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    require("vllm")
    folder = tmp_path_factory.mktemp("transformers")
    with contextlib.ExitStack() as running:
        started = {
            way: running.enter_context(serving(folder / f"{way}.log", *options)) for way, options in WAYS.items()
        }
        for one in started.values():
            one.ready()
        yield started


@pytest.fixture(params=WAYS)
def server(request: pytest.FixtureRequest, servers: dict[str, Server]) -> Server:
    return servers[request.param]


def client_rows(url: str, lengths: list[int], leave_after: int | None = None) -> list[tuple[int | None, Assembled]]:
    """Stream replies of some lengths; return the server's count and the client's row of each."""
    exporter = InMemorySpanExporter()
    otel_llm.instrument(exporter=exporter)
    counted: list[int | None] = []
    try:
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
            for length in lengths:
                asked: dict[str, Any] = {"max_tokens": length, "stream_options": {"include_usage": True}}
                stream = client.chat.completions.create(
                    model=str(VLLM / "tiny"), messages=[{"role": "user", "content": "def f(x):"}], stream=True, **asked
                )
                usage = None
                with stream:
                    for seen, chunk in enumerate(stream):
                        usage = chunk.usage.completion_tokens if chunk.usage is not None else usage
                        if seen == leave_after:
                            break
                counted.append(usage)
        otel_llm.flush()
    finally:
        otel_llm.uninstrument()
    assembler = Assembler()
    assembler.add(records_of(exporter.get_finished_spans()))
    rows = sorted(assembler.finish(), key=lambda row: row.resolved.commit_ns or 0)
    return list(zip(counted, rows, strict=True))


def test_both_views_share_a_trace_and_the_servers_count_is_exact(server: Server) -> None:
    lengths = [1, 2, 7, 19, 40, 64]
    for usage, client in client_rows(server.url, lengths):
        assert usage is not None
        mine = server.row(client.resolved.trace_id)
        assert mine.resolved.measured_at == "server"
        assert (client.resolved.measured_at or "client") == "client"
        assert (mine.tokens, mine.resolved.token_basis, mine.resolved.outcome) == (usage, "exact", "completed")
        assert mine.resolved.coverage == 1.0
        assert mine.resolved.commit_ns is not None
        assert client.resolved.commit_ns is not None
        assert client.resolved.commit_ns <= mine.resolved.commit_ns, "one machine, one clock"


def test_a_client_that_goes_away_is_a_cancelled_row_of_the_server(server: Server) -> None:
    [(_, client)] = client_rows(server.url, [900], leave_after=5)
    mine = server.row(client.resolved.trace_id)
    assert mine.resolved.outcome == "cancelled"
    assert 0 < mine.tokens < 900
    assert client.resolved.outcome == "cancelled"


def reply(url: str, length: int, begun: threading.Event | None = None) -> None:
    """Ask for a reply of so many tokens and read it; `begun` is set once some of it came."""
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        for _ in client.chat.completions.create(
            model=str(VLLM / "tiny"),
            messages=[{"role": "user", "content": f"def f{length}(x):"}],
            max_tokens=length,
            stream=True,
        ):
            if begun is not None:
                begun.set()


def steps_of(row: Assembled) -> range:
    first, count = (row.resolved.attributes[name] for name in (semconv.ENGINE_FIRST_STEP, semconv.ENGINE_STEPS))
    assert isinstance(first, int)
    assert isinstance(count, int)
    return range(first, first + count)


def test_the_steps_of_continuous_batching_say_which_requests_ran_together(servers: dict[str, Server]) -> None:
    server = servers["continuous batching"]
    server.ready()
    before = server.rows().keys()
    # The others come while the first runs, however long their clients take.
    lengths = [400, 3, 5, 17, 9, 31, 24, 12, 2]
    begun = threading.Event()
    with ThreadPoolExecutor(len(lengths)) as pool:
        first = pool.submit(reply, server.url, lengths[0], begun)
        assert begun.wait(WAIT_S)
        list(pool.map(functools.partial(reply, server.url), lengths[1:]))
        first.result()
    limit = time.monotonic() + WAIT_S
    while len(found := [row for trace_id, row in server.rows().items() if trace_id not in before]) < len(lengths):
        assert time.monotonic() < limit, "the server's rows did not arrive"
        time.sleep(0.1)
    members = Counter(step for row in found for step in steps_of(row))
    assert max(members.values()) > 1, "no two of them ran together"
    for row in found:
        mine = steps_of(row)
        assert len(mine) == row.tokens, "a token in each step"
        mean = sum(members[step] for step in mine) / len(mine)
        attributes = row.resolved.attributes
        assert attributes[semconv.ENGINE_BATCH_MEAN] == pytest.approx(mean, abs=0.006), "what is rounded to 0.01"
        assert float(str(attributes[semconv.GEN_AI_LATENCY_PREFILL])) > 0
    # No token of a step is later than one of the next.
    timed = sorted((step, at_ns) for row in found for step, at_ns in zip(steps_of(row), row.times_ns, strict=True))
    assert [at_ns for _, at_ns in timed] == sorted(at_ns for _, at_ns in timed)
