"""The application: nine users read replies through the OpenAI SDK; one reply stalls when all of it was read.

`python readers.py BASE_URL`; the OTEL_EXPORTER_OTLP_* variables say where the telemetry goes.
"""

from __future__ import annotations

import asyncio
import sys

import openai

import otel_llm

STALLED = "stall-empty-buffer"
REPLIES = ["healthy"] * 8 + [STALLED]
"""The paced server takes a model's name for the pace of its reply."""


async def read(client: openai.AsyncOpenAI, model: str) -> None:
    """Ask, and read the reply as it comes."""
    question = "Why do users wait?"
    stream = await client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": question}], stream=True
    )
    async for _ in stream:
        pass


async def main(base_url: str) -> None:
    """Read all replies at once."""
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none") as client:
        await asyncio.gather(*(read(client, model) for model in REPLIES))


if __name__ == "__main__":
    otel_llm.instrument()  # the one line
    asyncio.run(main(sys.argv[1]))
