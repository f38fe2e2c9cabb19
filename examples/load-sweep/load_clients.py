"""Clients of a real server, recorded by our own instrumentation: what each of them saw, token by token."""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING

import openai
import zstandard
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

import otel_llm
from otel_llm.formats.io.journal_format import frame

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from load_requests import Request
    from opentelemetry.sdk.trace import ReadableSpan

MODEL = "sweep"
TEMPLATE_TOKENS = 2
"""What the chat template adds to a prompt."""
SHORT = 16
"""Tokens of the prompts that are to cost little."""
WORDS = [f" w{number}" for number in range(24)]
"""Each is one token of the model's tokenizer."""


class Journal(SpanExporter):
    """Keep what the instrumentation exports as records of a journal, and write them to a file when asked."""

    def __init__(self) -> None:
        self._records: list[bytes] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Keep spans as one record, encoded by OpenTelemetry's own encoder."""
        self._records.append(frame(encode_spans(spans).SerializeToString(), time.time_ns()))
        return SpanExportResult.SUCCESS

    def forget(self) -> None:
        """Drop the records so far, those of a warm-up."""
        otel_llm.flush(30)
        self._records.clear()

    def write(self, file: Path) -> None:
        """Write the records since the last call."""
        otel_llm.flush(30)
        records, self._records = self._records, []
        file.write_bytes(zstandard.ZstdCompressor(level=19).compress(b"".join(records)))


class Clients:
    """Users of one server, each with a request of so many tokens in and out."""

    def __init__(self, url: str) -> None:
        self._client = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=600)
        self._draw = random.Random(0)

    async def ask(self, prompt: int, output: int, begun: asyncio.Event | None = None) -> None:
        """Send one request and read all of its reply; `begun` is set with its first token."""
        words = "".join(self._draw.choices(WORDS, k=prompt - TEMPLATE_TOKENS))
        stream = await self._client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": words}],
            max_tokens=output,
            stream=True,
            extra_body={
                "ignore_eos": True,
                "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            },
        )
        async with stream:
            async for chunk in stream:
                if begun is not None and chunk.choices and chunk.choices[0].delta.content:
                    begun.set()

    async def together(self, running: int, prompt: int, output: int) -> None:
        """Run so many replies at once, from the same moment."""
        await asyncio.gather(*(self.ask(prompt, output) for _ in range(running)))

    async def newcomers(self, running: int, prompts: Sequence[int], output: int) -> None:
        """Run replies to short prompts, and once all have begun send one prompt after the other."""
        begun = [asyncio.Event() for _ in range(running)]
        background = [asyncio.create_task(self.ask(SHORT, output, one)) for one in begun]
        await asyncio.gather(*(one.wait() for one in begun))
        for prompt in prompts:
            await self.ask(prompt, 2)
        await asyncio.gather(*background)

    async def arrive(self, requests: Sequence[Request]) -> None:
        """Send requests at their times, whatever becomes of the earlier ones, and wait for the last."""
        begin_s = time.monotonic()
        tasks = []
        for one in requests:
            await asyncio.sleep(max(0.0, begin_s + one.at_ns / 1e9 - time.monotonic()))
            tasks.append(asyncio.create_task(self.ask(one.prompt, one.output)))
        await asyncio.gather(*tasks)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()
