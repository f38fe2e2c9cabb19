"""Short loads against real local servers."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
from support.sse_server import BodyEnd, Json, Raw, Reply, Step, chunk, usage

from otel_llm.bench.client.learning import OUTPUT_TOKENS, learn
from otel_llm.bench.client.load_client import LoadClient
from otel_llm.bench.client.load_run import LoadRun
from otel_llm.bench.client.target import ApiName, Target
from otel_llm.bench.plan.load_plan import LoadPlan
from otel_llm.bench.plan.prompts import PromptSpec

MODEL = "m"


def plan_of(times_s: list[float], *, tokens: int = 4) -> LoadPlan:
    """Return a plan with requests at these times."""
    at_ns = np.array([round(time * 1e9) for time in times_s], np.int64)
    return LoadPlan(at_ns, np.full(len(at_ns), 16, np.int64), np.full(len(at_ns), tokens, np.int64))


@contextmanager
def client_of(url: str, *, api: ApiName = "chat", workers: int = 1) -> Iterator[LoadClient]:
    """Give a client that has learned about the server."""
    target = Target.read(url, model=MODEL, api=api)
    spec = PromptSpec(1)
    learned = learn(target, spec)
    with LoadClient(target, learned, replace(spec, lengths=learned.lengths), workers=workers) as client:
        yield client


def followed(run: LoadRun, *, drain_s: float = 20.0) -> LoadRun:
    """Follow a run to its end."""
    while run.sending:
        run.step(0.1)
    run.drain(drain_s)
    assert run.finished
    return run


def load(url: str, times_s: list[float], *, drain_s: float = 20.0, workers: int = 1, tokens: int = 4) -> LoadRun:
    """Send requests at these times, and return the finished run."""
    with client_of(url, workers=workers) as client:
        return followed(client.start(plan_of(times_s, tokens=tokens)), drain_s=drain_s)


class After:
    """Replies of one kind to the questions before a load, of another to its requests, which are of another length."""

    def __init__(self, first: Reply, then: Reply | Callable[[Json], Reply]) -> None:
        self._first = first
        self._then = then

    def __call__(self, request: Json) -> Reply:
        if request["max_tokens"] == OUTPUT_TOKENS:
            return self._first
        return self._then if isinstance(self._then, Reply) else self._then(request)


def counted(tokens: int, *, prompt: int = 16) -> Reply:
    """Return a reply that a server counts with every chunk, as vLLM does."""
    steps: list[Step] = [chunk({"role": "assistant", "content": ""})]
    for sent in range(1, tokens + 1):
        stated = {"prompt_tokens": prompt, "completion_tokens": sent, "total_tokens": prompt + sent}
        steps.append(chunk({"content": f"w{sent} "}, usage=stated))
    return Reply([*steps, chunk(finish="length"), usage(tokens, prompt), Raw(b"data: [DONE]\n\n"), BodyEnd()])


@contextmanager
def answering(
    status: int,
    body: bytes | dict[str, object],
    content_type: str = "application/json",
    models: list[str] | None = None,
) -> Iterator[str]:
    """Serve one answer to every POST, and a list of models if there are some; give the URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self._answer(status, body, content_type)

        def do_GET(self) -> None:
            if models is None:
                self._answer(404, b"nothing here", "text/plain")
            else:
                self._answer(200, {"object": "list", "data": [{"id": name} for name in models]}, "application/json")

        def _answer(self, code: int, content: bytes | dict[str, object], kind: str) -> None:
            raw = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
