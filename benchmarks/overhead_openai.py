"""Added CPU per streamed chunk of the OpenAI SDK: ours, Traceloop's and OpenInference's instrumentation, side by side.

    python benchmarks/overhead_openai.py [--mode sync|async|both] [--protocol grpc|http/protobuf] [--repetitions 5]

The SDK reads replies from an in-process transport, one network read a chunk, so that its own work is the floor. In each
process four replies are read with instrumentation suppressed and four with it, in turns; the CPU time of the process
(all threads: encoding and sending count, to a sink in another process, flushed at the end) over the number of chunks is
the figure. Processes of the variants take turns. Other work on the machine only ever adds: `added` is the difference of
each process's quietest turns, the median over the processes; the median over all pairs of turns stands beside it.

`--paced N` instead reads N concurrent replies at 50 chunks/s each: what a flush every 250 ms costs when there is little
to send at a time. Peers are measured where they are installed (extra `bench`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from concurrent import futures
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

VARIANTS = {
    "otel-llm": "otel_llm",
    "OpenInference": "openinference.instrumentation.openai",
    "Traceloop": "opentelemetry.instrumentation.openai",
}
CHUNKS = 1000
REPLIES = 4
"""Replies in one measurement, after which the instrumentation is flushed."""
PAIRS = 6
PACED_HZ = 50.0
PACED_S = 10.0


def sse(delta: dict[str, str], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    envelope = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return b"data: " + json.dumps({**envelope, "choices": [choice]}).encode() + b"\n\n"


def reply(chunks: int) -> list[bytes]:
    body = [sse({"content": f" word{i}"}) for i in range(chunks)]
    return [sse({"role": "assistant", "content": ""}), *body, sse({}, "stop"), b"data: [DONE]\n\n"]


# ---------------------------------------------------------------------------------------------------------- the sink


def sink() -> None:
    """Take OTLP over gRPC and HTTP, decode nothing, print the two ports."""
    import threading
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    import grpc

    class Anything(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, details: Any) -> Any:  # noqa: ARG002
            return grpc.unary_unary_rpc_method_handler(lambda request, context: b"")  # noqa: ARG005

    server = grpc.server(futures.ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((Anything(),))
    grpc_port = server.add_insecure_port("127.0.0.1:0")
    server.start()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 65536

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    print(json.dumps([grpc_port, http.server_address[1]]), flush=True)
    sys.stdin.read()  # until the parent is gone


# -------------------------------------------------------------------------------------------------------- the worker


def clients(parts: list[bytes], pace_s: float) -> tuple[Any, Any]:
    """Return a sync and an async OpenAI client whose every reply is `parts`."""
    import httpx2
    import openai

    class Body(httpx2.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            yield from parts

    class AsyncBody(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            for part in parts:
                if pace_s:
                    await asyncio.sleep(pace_s)
                yield part

    headers = {"content-type": "text/event-stream"}

    class Transport(httpx2.BaseTransport):
        def handle_request(self, request: httpx2.Request) -> httpx2.Response:  # noqa: ARG002
            return httpx2.Response(200, headers=headers, stream=Body())

    class AsyncTransport(httpx2.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:  # noqa: ARG002
            return httpx2.Response(200, headers=headers, stream=AsyncBody())

    url, key = "http://model.test/v1", "none"
    return (
        openai.OpenAI(base_url=url, api_key=key, http_client=httpx2.Client(transport=Transport())),
        openai.AsyncOpenAI(base_url=url, api_key=key, http_client=httpx2.AsyncClient(transport=AsyncTransport())),
    )


def install(variant: str) -> Callable[[], object]:
    """Instrument as the variant's README says, exporting to the sink; return what flushes it."""
    if variant == "otel-llm":
        import otel_llm

        otel_llm.instrument()
        return lambda: otel_llm.flush(30)
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    exporter: Any
    if os.environ["OTEL_EXPORTER_OTLP_PROTOCOL"] == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        exporter = GrpcExporter()
    else:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

        exporter = HttpExporter()
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(exporter))
    if variant == "Traceloop":
        from opentelemetry.instrumentation.openai import OpenAIInstrumentor as Instrumentor
    else:
        from openinference.instrumentation.openai import OpenAIInstrumentor as Instrumentor
    Instrumentor().instrument(tracer_provider=provider)
    return provider.force_flush


def worker(variant: str, mode: str, paced: int) -> None:
    """Print the CPU us a chunk of each pair: suppressed, instrumented."""
    from opentelemetry.instrumentation.utils import suppress_instrumentation

    flush = install(variant)
    chunks = int(PACED_HZ * PACED_S) if paced else CHUNKS
    sync_client, async_client = clients(reply(chunks), 1 / PACED_HZ if paced else 0.0)
    question: Any = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": True}

    def read() -> None:
        for _ in sync_client.chat.completions.create(**question):
            pass

    async def read_async() -> None:
        async for _ in await async_client.chat.completions.create(**question):
            pass

    async def together() -> None:
        await asyncio.gather(*(read_async() for _ in range(max(paced, 1))))

    loop = asyncio.new_event_loop()

    def once() -> float:
        replies = 1 if paced else REPLIES
        before = time.process_time_ns()
        for _ in range(replies):
            if mode == "sync":
                read()
            else:
                loop.run_until_complete(together())
        flush()
        return (time.process_time_ns() - before) / 1e3 / (chunks * replies * max(paced, 1))

    def suppressed() -> float:
        with suppress_instrumentation():
            return once()

    suppressed(), once()
    print(json.dumps([[suppressed(), once()] for _ in range(2 if paced else PAIRS)]))


# -------------------------------------------------------------------------------------------------------- the parent


def measure(python: str, mode: str, protocol: str, repetitions: int, paced: int) -> dict[str, list[list[list[float]]]]:
    """Return the turns of every process of every variant that is installed, as pairs of CPU us a chunk."""
    me = [python, str(Path(__file__).resolve())]
    processes: dict[str, list[list[list[float]]]] = {}
    with subprocess.Popen([*me, "--sink"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        grpc_port, http_port = json.loads(process.stdout.readline())
        environment = {
            **os.environ,
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{grpc_port if protocol == 'grpc' else http_port}",
            "OTEL_SERVICE_NAME": "benchmark",
        }
        for _ in range(repetitions):
            for variant, module in VARIANTS.items():
                if not installed(python, module):
                    continue
                command = [*me, "--worker", variant, "--mode", mode, "--paced", str(paced)]
                done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
                if done.returncode:
                    sys.exit(f"{variant}: {done.stderr}")
                processes.setdefault(variant, []).append(json.loads(done.stdout.splitlines()[-1]))
        process.stdin.close()
    return processes


def installed(python: str, module: str) -> bool:
    if python == sys.executable:
        return find_spec(module.partition(".")[0]) is not None and _found(module)
    code = f"import importlib.util as u, sys; sys.exit(u.find_spec({module!r}) is None)"
    return subprocess.run([python, "-c", code], capture_output=True, check=False).returncode == 0


def _found(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mode", choices=("sync", "async", "both"), default="both")
    parser.add_argument("--protocol", choices=("grpc", "http/protobuf"), default="grpc")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--paced", type=int, default=0, help="concurrent async replies at 50 chunks/s each")
    parser.add_argument("--python", default=sys.executable, help="the interpreter to measure in")
    parser.add_argument("--sink", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.sink:
        sink()
    elif chosen.worker:
        worker(chosen.worker, chosen.mode, chosen.paced)
    else:
        modes = ("async",) if chosen.paced else ("sync", "async") if chosen.mode == "both" else (chosen.mode,)
        for mode in modes:
            table(mode, chosen, measure(chosen.python, mode, chosen.protocol, chosen.repetitions, chosen.paced))


def table(mode: str, chosen: argparse.Namespace, processes: dict[str, list[list[list[float]]]]) -> None:
    """Print one line a variant, and how many times ours the others add."""
    paced = f", {chosen.paced} replies at {PACED_HZ:g} chunks/s" if chosen.paced else ""
    print(f"\n{mode}, {chosen.protocol}{paced}: CPU us a chunk, all threads")
    print(f"{'':15}{'bare SDK':>10}{'with':>10}{'added':>10}{'times ours':>12}{'all pairs: median (quartiles)':>34}")
    ours = quietest(processes["otel-llm"]) if "otel-llm" in processes else None
    for variant, measured in processes.items():
        bare, full = (statistics.median(min(turn[i] for turn in turns) for turns in measured) for i in (0, 1))
        added = quietest(measured)
        pairs = [after - before for turns in measured for before, after in turns]
        low, middle, high = statistics.quantiles(pairs, n=4)
        times = f"{added / ours:.1f}x" if ours else ""
        everything = f"{middle:.2f} ({low:.2f} .. {high:.2f})"
        print(f"{variant:15}{bare:>10.2f}{full:>10.2f}{added:>10.2f}{times:>12}{everything:>34}")


def quietest(measured: list[list[list[float]]]) -> float:
    """Return what the instrumentation adds between the quietest turns of a process, the median over the processes."""
    return statistics.median(
        min(after for _, after in turns) - min(before for before, _ in turns) for turns in measured
    )


if __name__ == "__main__":
    main()
