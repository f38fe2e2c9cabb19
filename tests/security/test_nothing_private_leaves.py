"""No prompt, reply, API key or URL query stands in any exported byte, whatever the client library and the ending."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import aiohttp
import anthropic
import botocore.session
import httpx
import httpx2
import openai
import pytest
import requests
import urllib3
from botocore.config import Config
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.patience import WAIT_S

import otel_llm

PROMPT, REPLY, KEY, QUERY, MINE = "private-prompt", "private-reply", "private-key", "private-query", "private-exception"
PRIVATE = (PROMPT, REPLY, KEY, QUERY, MINE, "private")
MESSAGES: Any = [{"role": "system", "content": PROMPT}, {"role": "user", "content": PROMPT}]
BODY = {"model": "m", "messages": MESSAGES, "stream": True, "user": PROMPT, "max_tokens": 9}
HEADERS = {"Authorization": f"Bearer {KEY}", "x-api-key": KEY, "Content-Type": "application/json"}
OF_OPENAI: tuple[dict[str, Any], ...] = (
    {"choices": [{"index": 0, "delta": {"role": "assistant", "content": REPLY}}], "id": "1", "model": "served"},
    {"choices": [{"index": 0, "delta": {"reasoning_content": REPLY, "content": None}}]},
    {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": REPLY}}]}}]},
)
OF_ANTHROPIC: tuple[dict[str, Any], ...] = (
    {"type": "message_start", "message": {"id": "1", "model": "served", "content": [], "role": "assistant"}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": REPLY}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": REPLY}},
)
ERROR = {
    "type": "error",
    "error": {"message": f"{REPLY} {PROMPT} {KEY}", "type": f"{REPLY} {PROMPT}", "code": f"{KEY}!"},
}
ENDINGS = ("whole", "error_event", "refused", "unauthorized", "cut", "broken", "mine", "unreachable")


class MineError(Exception):
    """What an application raises while it reads."""


class Handler(BaseHTTPRequestHandler):
    """Answer as the model's name says, which is the ending."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        ending = body.get("model") or next(one for one in ENDINGS if one in self.path)
        if ending in ("refused", "unauthorized"):
            self.send_response(500 if ending == "refused" else 401, f"{REPLY} {KEY}")
            self.send_header("Content-Type", "application/json")
            self.send_header("x-request-id", REPLY)
            self.end_headers()
            self.wfile.write(json.dumps(ERROR).encode())
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for event in OF_ANTHROPIC if "messages" in self.path else OF_OPENAI:
            self.wfile.write(f"event: {event.get('type', 'message')}\ndata: {json.dumps(event)}\n\n".encode())
        if ending == "error_event":
            self.wfile.write(f"event: error\ndata: {json.dumps(ERROR)}\n\n".encode())
        elif ending == "broken":
            self.wfile.write(f"data: {{{REPLY}\n\ndata: [DONE]\n\n".encode())
        elif ending in ("whole", "mine"):
            self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def taken(items: Any, ending: str) -> None:
    for number, _ in enumerate(items):
        if ending == "mine" and number:
            raise MineError(f"{MINE}: {REPLY}")


def of_openai(url: str, ending: str) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, default_query={"q": QUERY}) as client:
        taken(client.chat.completions.create(model=ending, messages=MESSAGES, stream=True, user=PROMPT), ending)


def of_responses(url: str, ending: str) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, default_query={"q": QUERY}) as client:
        taken(client.responses.create(model=ending, input=PROMPT, instructions=PROMPT, stream=True), ending)


def of_anthropic(url: str, ending: str) -> None:
    with anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0, default_query={"q": QUERY}) as client:
        messages: Any = MESSAGES[1:]
        taken(client.messages.create(model=ending, max_tokens=9, system=PROMPT, messages=messages, stream=True), ending)


def address(url: str) -> str:
    return f"{url.replace('://', f'://user:{KEY}@')}/v1/chat/completions?api-key={KEY}&q={QUERY}#private"


def of_either_httpx(package: Any) -> Callable[[str, str], None]:
    def read(url: str, ending: str) -> None:
        with package.stream("POST", address(url), json=BODY | {"model": ending}, headers=HEADERS) as response:
            taken(response.iter_lines(), ending)

    return read


def of_aiohttp(url: str, ending: str) -> None:
    async def go() -> None:
        async with aiohttp.ClientSession() as session:
            url_ = address(url).replace(f"user:{KEY}@", "")
            async with session.post(url_, json=BODY | {"model": ending}, headers=HEADERS) as response:
                number = 0
                async for _ in response.content:
                    number += 1
                    if ending == "mine" and number > 1:
                        raise MineError(f"{MINE}: {REPLY}")

    asyncio.run(go())


def of_requests(url: str, ending: str) -> None:
    with requests.post(
        address(url), json=BODY | {"model": ending}, headers=HEADERS, stream=True, timeout=WAIT_S
    ) as answer:
        taken(answer.iter_lines(), ending)


def of_urllib3(url: str, ending: str) -> None:
    body = json.dumps(BODY | {"model": ending}).encode()
    with urllib3.PoolManager(retries=False) as pool:
        answer = pool.request("POST", address(url), body=body, headers=HEADERS, preload_content=False)
        taken(answer.stream(), ending)


def of_urllib(url: str, ending: str) -> None:
    body = json.dumps(BODY | {"model": ending}).encode()
    path = address(url).replace(f"user:{KEY}@", "")
    with urllib.request.urlopen(urllib.request.Request(path, body, HEADERS), timeout=WAIT_S) as answer:
        taken(answer, ending)


def of_botocore(url: str, ending: str) -> None:
    session = botocore.session.get_session()
    session.set_credentials("private-id", KEY, KEY)
    config = Config(retries={"total_max_attempts": 1})
    client = session.create_client("bedrock-runtime", region_name="eu-west-1", endpoint_url=url, config=config)
    messages = [{"role": "user", "content": [{"text": PROMPT}]}]
    taken(client.converse_stream(modelId=ending, messages=messages, system=[{"text": PROMPT}])["stream"], ending)


STACKS: dict[str, Callable[[str, str], None]] = {
    "openai": of_openai,
    "responses": of_responses,
    "anthropic": of_anthropic,
    "httpx": of_either_httpx(httpx),
    "httpx2": of_either_httpx(httpx2),
    "aiohttp": of_aiohttp,
    "requests": of_requests,
    "urllib3": of_urllib3,
    "urllib": of_urllib,
    "botocore": of_botocore,
}


@contextmanager
def exported() -> Iterator[list[bytes]]:
    """Record while the block runs; return all that leaves, as it leaves: segments, request spans, metrics."""
    segments, spans, reader = InMemorySpanExporter(), InMemorySpanExporter(), InMemoryMetricReader()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans))
    meters = MeterProvider([reader], shutdown_on_exit=False)
    found: list[bytes] = []
    otel_llm.instrument(exporter=segments, tracer_provider=provider, meter_provider=meters, metrics="chunks")
    try:
        yield found
        assert otel_llm.flush(WAIT_S)
        assert segments.get_finished_spans()
        found += [
            encode_spans(segments.get_finished_spans()).SerializeToString(),
            encode_spans(spans.get_finished_spans()).SerializeToString(),
            str(reader.get_metrics_data()).encode(),
        ]
    finally:
        otel_llm.uninstrument()
        provider.shutdown()
        meters.shutdown()


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("stack", STACKS)
def test_nothing_private_is_exported(stack: str, url: str, caplog: pytest.LogCaptureFixture) -> None:
    for ending in ENDINGS:
        with exported() as found, suppress(Exception):
            STACKS[stack]("http://127.0.0.1:9" if ending == "unreachable" else url, ending)
        for raw in found:
            assert [word for word in PRIVATE if word.encode() in raw] == [], ending
    said = "\n".join(record.getMessage() for record in caplog.records if record.name.startswith("otel_llm"))
    assert [word for word in PRIVATE if word in said] == []
