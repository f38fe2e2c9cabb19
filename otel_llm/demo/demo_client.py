"""The demo's chat application: concurrent requests through the OpenAI SDK, instrumented with one line.

`python -m otel_llm.demo.demo_client BASE_URL` sends the demo's mix; the destination of the telemetry is set by the
standard OTEL_EXPORTER_OTLP_* variables, as in any application.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

import click
import openai

import otel_llm
from otel_llm.demo.scripted_deliveries import DEMO_MIX, by_name

STARTS_WITHIN_S = 1.0
ENGINE_REQUESTS = 30
ENGINE_TOKENS = (20, 220)
"""Reply lengths for a real engine; the tiny model never ends by itself, so replies have these lengths."""


@dataclass(frozen=True, slots=True)
class Question:
    """One request to send: its model, when, the length of the reply, and when the user presses stop."""

    model: str
    start_s: float
    max_tokens: int | None = None
    read_at_most: int | None = None


def demo_questions(spread: random.Random) -> list[Question]:
    """Return the scripted mix."""
    return [
        Question(name, spread.uniform(0, STARTS_WITHIN_S), read_at_most=delivery.read_at_most if delivery else None)
        for name, count in DEMO_MIX
        for delivery in [by_name(name)]
        for _ in range(count)
    ]


def engine_questions(model: str, spread: random.Random) -> list[Question]:
    """Return requests for a real engine: mixed lengths, every tenth stopped by its reader."""
    return [
        Question(
            model,
            spread.uniform(0, STARTS_WITHIN_S),
            max_tokens=spread.randint(*ENGINE_TOKENS),
            read_at_most=10 if i % 10 == 9 else None,
        )
        for i in range(ENGINE_REQUESTS)
    ]


async def send(client: openai.AsyncOpenAI, question: Question) -> None:
    """Send one request and read its reply as a chat page would; broken connections are expected."""
    await asyncio.sleep(question.start_s)
    try:
        async with await client.chat.completions.create(
            model=question.model,
            messages=[{"role": "user", "content": "Tell me about waiting."}],
            max_tokens=question.max_tokens if question.max_tokens is not None else openai.omit,
            stream=True,
            extra_body={"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        ) as stream:
            chunks = 0
            async for chunk in stream:
                chunks += bool(chunk.choices and chunk.choices[0].delta.content)
                if chunks == question.read_at_most:
                    break
    except openai.APIError:
        pass
    except Exception as problem:
        # The SDK lets its transport's errors through in mid-stream.
        if type(problem).__name__ != "RemoteProtocolError":
            raise


async def run(base_url: str, questions: list[Question]) -> None:
    """Send all questions concurrently."""
    async with (
        openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client,
        asyncio.TaskGroup() as all_,
    ):
        for question in questions:
            all_.create_task(send(client, question))


@click.command()
@click.argument("base_url")
@click.option("--model", help="Ask this model of a real engine instead of the scripted replies.")
@click.option("--seed", default=1, show_default=True)
def main(base_url: str, model: str | None, seed: int) -> None:
    """Send the demo's requests to BASE_URL."""
    otel_llm.instrument()  # the one line
    spread = random.Random(seed)  # noqa: S311  a script, not a secret
    asyncio.run(run(base_url, demo_questions(spread) if model is None else engine_questions(model, spread)))
    otel_llm.flush()


if __name__ == "__main__":
    main()
