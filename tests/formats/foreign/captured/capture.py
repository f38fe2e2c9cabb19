"""Record what other instrumentations really send: their spans, by their own exporter, as OTLP/JSON.

    python -m venv V && V/bin/pip install grpcio openai opentelemetry-exporter-otlp-proto-http PACKAGES
    V/bin/python tests/formats/foreign/captured/capture.py EMITTER > tests/formats/foreign/captured/EMITTER.json

EMITTER and its PACKAGES are in README.md beside this file. `vllm` needs the path of an environment that holds one
(`make vllm-env`), and is the only one that does not talk to the scripted server of the tests.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from base64 import b64decode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[3]
sys.path.insert(0, str(TESTS))

import openai  # noqa: E402
from google.protobuf import json_format  # noqa: E402
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: E402
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest  # noqa: E402
from opentelemetry.sdk.resources import Resource  # noqa: E402
from opentelemetry.sdk.trace import TracerProvider  # noqa: E402
from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: E402
from support import sse_server  # noqa: E402
from support.otlp_receiver import HttpReceiver  # noqa: E402
from support.sse_server import Cut, Reply, SseServer, Step, Wait, chunk  # noqa: E402

START_S = 240.0
LOADING_S = 8.0
"""After so long vLLM has sent what it records while it starts: a dozen spans with the paths of this machine."""


def paced(*steps: Step) -> Reply:
    """Return a reply with 10 ms before every step."""
    return Reply([one for step in steps for one in (Wait(0.01), step)])


ROLE = chunk({"role": "assistant", "content": ""})
REPLIES = {
    "short": paced(ROLE, *sse_server.words(6), chunk(finish="stop"), sse_server.usage(6), sse_server.DONE),
    "long": paced(ROLE, *sse_server.words(150), chunk(finish="stop"), sse_server.DONE),
    "cut": paced(ROLE, *sse_server.words(4), Cut()),
    "choices": paced(
        ROLE,
        chunk({"role": "assistant", "content": ""}, index=1),
        *(chunk({"content": "word "}, index=i % 2) for i in range(6)),
        chunk(finish="stop"),
        chunk(index=1, finish="stop"),
        sse_server.DONE,
    ),
}


def ask(client: Any, model: str, **more: Any) -> None:
    """Stream one reply to its end, or to where it breaks."""
    with contextlib.suppress(Exception):
        for _ in client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "hi"}], stream=True, **more
        ):
            pass


def from_python(name: str) -> list[ExportTraceServiceRequest]:
    """Return what one instrumentation of the OpenAI client sends for each of the replies."""
    with HttpReceiver() as receiver, SseServer(REPLIES) as server:
        provider = TracerProvider(resource=Resource.create({"service.name": name}))
        processor = BatchSpanProcessor(OTLPSpanExporter(f"{receiver.endpoint}/v1/traces"))
        provider.add_span_processor(processor)
        make = INSTRUMENT[name](provider)
        for model in REPLIES:
            client = make(base_url=server.url, api_key="none", max_retries=0)
            usage = {"stream_options": {"include_usage": True}} if model == "short" else {}
            ask(client, model, **usage, **({"n": 2} if model == "choices" else {}))
            client.close()
        gc.collect()
        provider.force_flush()
        provider.shutdown()
        return receiver.messages


def instrumentor(module: str, name: str) -> Callable[[TracerProvider], Any]:
    """Return what switches an OpenTelemetry instrumentor on and gives the client to use."""

    def switch_on(provider: TracerProvider) -> Any:
        getattr(importlib.import_module(module), name)().instrument(tracer_provider=provider)
        return openai.OpenAI

    return switch_on


def langfuse(provider: TracerProvider) -> Any:
    """Let Langfuse send to the provider given, and return its client."""
    module = importlib.import_module("langfuse")
    module.Langfuse(
        public_key="pk-none",
        secret_key="none",
        base_url="http://127.0.0.1:9",
        tracer_provider=provider,
    )
    return importlib.import_module("langfuse.openai").OpenAI


INSTRUMENT: dict[str, Callable[[TracerProvider], Any]] = {
    "traceloop": instrumentor("opentelemetry.instrumentation.openai", "OpenAIInstrumentor"),
    "openinference": instrumentor("openinference.instrumentation.openai", "OpenAIInstrumentor"),
    "genai_openai": instrumentor("opentelemetry.instrumentation.genai.openai", "OpenAIInstrumentor"),
    "langfuse": langfuse,
}


@contextlib.contextmanager
def vllm(environment: Path, traces_url: str) -> Iterator[str]:
    """Run a real vLLM on the CPU that sends its spans to `traces_url`."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    command = [
        *(str(environment / "bin" / "vllm"), "serve", str(environment / "tiny"), "--served-model-name", "tiny"),
        *("--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16"),
        *("--max-model-len", "512", "--max-num-seqs", "16", "--enforce-eager"),
        *("--otlp-traces-endpoint", traces_url),
    ]
    settings = {
        **dict.fromkeys(("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "VLLM_NO_USAGE_STATS", "DO_NOT_TRACK"), "1"),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
        "OTEL_SERVICE_NAME": "vllm",
    }
    server = subprocess.Popen(command, env=os.environ | settings, stdout=sys.stderr, start_new_session=True)
    try:
        limit = time.monotonic() + START_S
        while True:
            with contextlib.suppress(urllib.error.URLError, OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1)
                break
            if server.poll() is not None or time.monotonic() > limit:
                raise SystemExit("vLLM did not start")
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(30)


def from_vllm(environment: Path) -> list[ExportTraceServiceRequest]:
    """Return the spans of requests to a real vLLM: one alone, and one for two choices."""
    with HttpReceiver() as receiver:
        with vllm(environment, f"{receiver.endpoint}/v1/traces") as url:
            client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
            time.sleep(LOADING_S)
            before = len(receiver.messages)
            ask(client, "tiny", max_tokens=20, extra_body={"ignore_eos": True})
            ask(client, "tiny", max_tokens=10, n=2, temperature=1.0, extra_body={"ignore_eos": True})
            limit = time.monotonic() + 30
            while len(receiver.messages) == before and time.monotonic() < limit:
                time.sleep(0.2)
        return receiver.messages[before:]


def as_json(messages: list[ExportTraceServiceRequest]) -> str:
    """Return one OTLP/JSON document: ids in hex, enums as numbers."""
    whole = ExportTraceServiceRequest()
    for message in messages:
        whole.MergeFrom(message)
    document = json_format.MessageToDict(whole, use_integers_for_enums=True)

    def fix(node: Any) -> None:
        if isinstance(node, dict):
            for key, value in node.items():
                if key in ("traceId", "spanId", "parentSpanId"):
                    node[key] = b64decode(value).hex()
                else:
                    fix(value)
        elif isinstance(node, list):
            for value in node:
                fix(value)

    fix(document)
    return json.dumps(document, indent=1)


if __name__ == "__main__":
    emitter = sys.argv[1]
    print(as_json(from_vllm(Path(sys.argv[2])) if emitter == "vllm" else from_python(emitter)))
