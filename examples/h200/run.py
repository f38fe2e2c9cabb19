"""Load a model under transformers continuous batching, below and above what it can serve; record both sides and audit.

    python run.py --out out --server-python PYTHON [--shape llama-3.1-8b --device cuda]

`--server-python` is the interpreter that has torch, transformers[serving] and otel-llm; this one needs
`otel-llm[collector]`. Arrivals are Poisson. How many requests a second are as many as the server can take is measured
first, with a closed loop of `--slots` clients.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import socket
import sys
import time
from collections import Counter
from contextlib import ExitStack
from importlib import metadata
from pathlib import Path
from typing import Any

import openai
import zstandard
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

import otel_llm
import otel_llm.audit
from otel_llm.demo.children import Child
from otel_llm.formats.io.journal_format import frame
from otel_llm.journal.records import records_since

HERE = Path(__file__).parent
LISTENING = r"OTLP/gRPC (\S+),"
START_S = 900.0


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--server-python", default=sys.executable)
    parser.add_argument("--shape", choices=["llama-3.1-8b", "tiny"], default="llama-3.1-8b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--prompt-words", type=int, default=200, help="words in a prompt")
    parser.add_argument("--tokens", default="64,256,512", help="lengths of replies, one is drawn for each request")
    parser.add_argument("--slots", type=int, default=128, help="clients of the closed loop that measures the capacity")
    parser.add_argument("--seconds", type=float, default=120.0, help="length of each load")
    parser.add_argument("--below", type=float, default=0.6, help="the first load, in shares of the capacity")
    parser.add_argument("--above", type=float, default=1.4, help="the second")
    parser.add_argument("--leave", type=float, default=0.05, help="share of the clients that go away in mid-reply")
    parser.add_argument("--cb", default="", help="more options of `transformers serve`, in one text")
    parser.add_argument("--keep-mb", type=float, default=4.0, help="size to which the journal is trimmed")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


class Load:
    """Clients of one server; what they do is drawn from a seed."""

    def __init__(self, url: str, model: str, args: argparse.Namespace) -> None:
        self._client = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=600)
        self._model = model
        self._lengths = [int(length) for length in args.tokens.split(",")]
        self._words = args.prompt_words
        self._leave = args.leave
        self.random = random.Random(args.seed)
        self.outcomes: Counter[str] = Counter()

    async def one(self, phase: str, *, may_leave: bool = True) -> None:
        """Ask for a reply and read it, or leave in the middle."""
        length = self.random.choice(self._lengths)
        prompt = " ".join(str(self.random.randrange(1000)) for _ in range(self._words))
        leaves = self.random.randrange(1, length) if may_leave and self.random.random() < self._leave else None
        try:
            stream = await self._client.chat.completions.create(
                model=self._model,
                messages=[{"role": "user", "content": prompt}],
                max_tokens=length,
                stream=True,
                stream_options={"include_usage": True},
            )
            seen = 0
            async with stream:
                async for _ in stream:
                    seen += 1
                    if seen == leaves:
                        self.outcomes[f"{phase}: left"] += 1
                        return
            self.outcomes[f"{phase}: read"] += 1
        except openai.OpenAIError as error:
            self.outcomes[f"{phase}: {type(error).__name__}"] += 1

    async def capacity(self, slots: int, seconds: float) -> float:
        """Return how many replies a second come out of a closed loop."""
        done = 0
        end = time.monotonic() + seconds

        async def client() -> None:
            nonlocal done
            while time.monotonic() < end:
                await self.one("capacity", may_leave=False)
                done += 1

        began = time.monotonic()
        await asyncio.gather(*(client() for _ in range(slots)))
        return done / (time.monotonic() - began)

    async def poisson(self, phase: str, rate: float, seconds: float) -> None:
        """Send requests at a rate, whatever becomes of them, and wait for the last."""
        end = time.monotonic() + seconds
        running = set()
        while time.monotonic() < end:
            await asyncio.sleep(self.random.expovariate(rate))
            running.add(asyncio.create_task(self.one(phase)))
        await asyncio.gather(*running)


def collector(out: Path) -> Child:
    command = [
        *(sys.executable, "-m", "otel_llm.cli.main", "collect", "--verdicts", "none"),
        *("--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--web", "127.0.0.1:0"),
        *("--journal", str(out / "journal"), "--decisions", str(out / "decisions.jsonl")),
    ]
    return Child("collector", command, quiet(), out / "collector.log")


def server(out: Path, model: Path, endpoint: str, args: argparse.Namespace) -> tuple[Child, str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    command = [
        *(args.server_python, "-P", str(HERE / "serve.py"), "serve", str(model), "--device", args.device),
        *("--host", "127.0.0.1", "--port", str(port), "--continuous-batching", *args.cb.split()),
    ]
    told = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OTEL_SERVICE_NAME": "transformers-serve"}
    return Child(
        "server", command, quiet() | told | sent_to(endpoint), out / "server.log"
    ), f"http://127.0.0.1:{port}/v1"


def quiet() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    return kept | {"PYTHONUNBUFFERED": "1"}


def sent_to(endpoint: str) -> dict[str, str]:
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}


def model_in(args: argparse.Namespace) -> Path:
    folder: Path = args.out / args.shape
    if not (folder / "config.json").exists():
        command = [args.server_python, "-P", str(HERE / "make_model.py"), args.shape, str(folder)]
        with Child("model", command, quiet(), args.out / "model.log") as child:
            if child.process.wait() != 0:
                raise child.failure("failed")
    return folder


def trim(journal: Path, target: Path, keep_bytes: float) -> float:
    """Write what is in a journal to one compressed file, of as many whole traces as fit; return the share kept."""
    records = list(records_since(journal, 0, Counter()))
    share = 1.0
    while True:
        pieces = [frame(raw, record.receipt_ns or 0) for record in records if (raw := kept(record.raw, share))]
        data = zstandard.ZstdCompressor(level=19).compress(b"".join(pieces))
        if len(data) <= keep_bytes:
            target.write_bytes(data)
            return share
        share *= 0.9 * keep_bytes / len(data)


def kept(raw: bytes, share: float) -> bytes:
    """Return a record with the spans of a share of all traces, by their ids; nothing if none is left."""
    message = ExportTraceServiceRequest.FromString(raw)
    message.DiscardUnknownFields()
    for resource in message.resource_spans:
        for scope in resource.scope_spans:
            stay = [span for span in scope.spans if int.from_bytes(span.trace_id[-4:], "big") < share * 2**32]
            del scope.spans[:]
            scope.spans.extend(stay)
    some = any(scope.spans for resource in message.resource_spans for scope in resource.scope_spans)
    return message.SerializeToString() if some else b""


async def loads(url: str, model: Path, args: argparse.Namespace) -> dict[str, Any]:
    load = Load(url, str(model), args)
    await load.one("warm-up", may_leave=False)
    capacity = await load.capacity(args.slots, min(args.seconds, 60.0))
    phases = {}
    for name in ("below", "above"):
        rate = capacity * getattr(args, name)
        began_ns = time.time_ns()
        await load.poisson(name, rate, args.seconds)
        phases[name] = {"requests_per_s": rate, "began_unix_nano": began_ns, "ended_unix_nano": time.time_ns()}
        print(f"{name}: {rate:.2f} requests/s for {args.seconds:.0f} s", flush=True)
    return {"capacity_requests_per_s": capacity, "phases": phases, "outcomes": dict(sorted(load.outcomes.items()))}


def main() -> None:
    args = options()
    args.out.mkdir(parents=True, exist_ok=True)
    model = model_in(args)
    with ExitStack() as children:
        receiver = children.enter_context(collector(args.out))
        endpoint = f"http://{receiver.wait_for(LISTENING, START_S).group(1)}"
        serving, url = server(args.out, model, endpoint, args)
        children.enter_context(serving)
        serving.wait_for(r"Application startup complete", START_S)
        os.environ |= sent_to(endpoint) | {"OTEL_SERVICE_NAME": "load"}
        otel_llm.instrument()
        reported = asyncio.run(loads(url, model, args))
        otel_llm.flush(30)
        serving.stop(60)
        otel_llm.uninstrument()
        receiver.stop(60)
    share = trim(args.out / "journal", args.out / "recorded.otlp.zst", args.keep_mb * 1e6)
    audit = otel_llm.audit.load(args.out / "recorded.otlp.zst")
    (args.out / "audit.json").write_text(json.dumps(audit.summary(), indent=1), encoding="utf-8")
    audit.write_html(args.out / "report.html")
    audit.write_requests(args.out / "requests.csv")
    reported |= {
        "arguments": {name: str(value) for name, value in vars(args).items()},
        "traces_kept_ratio": share,
        "machine": platform.platform(),
        "python": platform.python_version(),
        "openai": metadata.version("openai"),
        "tracing": type(trace.get_tracer_provider()).__name__,
    }
    (args.out / "run.json").write_text(json.dumps(reported, indent=1), encoding="utf-8")
    print(json.dumps(reported["outcomes"], indent=1))


if __name__ == "__main__":
    main()
