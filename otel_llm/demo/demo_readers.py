"""The readers of the relay's demo: one chat each, through the OpenAI SDK, spread over the base URLs in turn.

`python -m otel_llm.demo.demo_readers BASE_URL... --replies FILE` prints `N of M have text` and `N of M have ended` as
the replies arrive, and writes each reader's reply. The destination of the telemetry is set by OTEL_EXPORTER_OTLP_*.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import openai

import otel_llm

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(slots=True)
class Reply:
    """A reader's reply. `ids`: the tokens, if the server gave them; `error`: how the stream broke, None if not."""

    reader: int
    text: str = ""
    ids: list[int] = field(default_factory=list)
    finish: str | None = None
    error: str | None = None

    @property
    def complete(self) -> bool:
        """Whether it ended normally."""
        return self.finish is not None and self.error is None

    def same(self, other: Reply) -> bool:
        """Return whether both are complete, with the same text, tokens and finish."""
        ours, theirs = (self.text, self.ids, self.finish), (other.text, other.ids, other.finish)
        return self.complete and other.complete and ours == theirs


def write(path: Path, replies: Sequence[Reply]) -> None:
    """Write one JSON line a reply."""
    path.write_text("".join(json.dumps(dataclasses.asdict(reply)) + "\n" for reply in replies), encoding="utf-8")


def read(path: Path) -> list[Reply]:
    """Return the replies that `write` wrote."""
    return [Reply(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


@dataclass(slots=True)
class Crowd:
    """Readers who begin within `within_s` seconds, and their progress."""

    count: int
    model: str
    max_tokens: int
    within_s: float
    text_is: int
    """The number of tokens from which a reader has text."""
    _have_text: int = 0
    _ended: int = 0

    async def read(self, clients: Sequence[openai.AsyncOpenAI]) -> list[Reply]:
        """Read all replies; return them in the order of the readers."""
        asking = [self._one(clients[i % len(clients)], Reply(i)) for i in range(self.count)]
        return list(await asyncio.gather(*asking))

    async def _one(self, client: openai.AsyncOpenAI, reply: Reply) -> Reply:
        await asyncio.sleep(self.within_s * reply.reader / self.count)
        try:
            await self._follow(client, reply)
        except openai.APIError as problem:
            reply.error = str(problem)
        except Exception as problem:  # the SDK lets its transport's errors through in mid-stream
            if type(problem).__module__.partition(".")[0] not in ("httpx", "httpcore", "httpx2", "httpcore2"):
                raise
            reply.error = type(problem).__name__
        self._ended += 1
        click.echo(f"{self._ended} of {self.count} have ended")
        return reply

    async def _follow(self, client: openai.AsyncOpenAI, reply: Reply) -> None:
        options = {"include_usage": True, "continuous_usage_stats": True}
        async with await client.chat.completions.create(
            model=self.model,
            messages=[{"role": "user", "content": f"I am reader {reply.reader}. Tell me about waiting."}],
            max_tokens=self.max_tokens,
            temperature=0,
            stream=True,
            extra_body={"stream_options": options, "return_token_ids": True},
        ) as stream:
            tokens = 0
            async for chunk in stream:
                for choice in chunk.choices:
                    ids: Any = (choice.model_extra or {}).get("token_ids") or []
                    reply.ids += ids
                    reply.text += choice.delta.content or ""
                    reply.finish = choice.finish_reason or reply.finish
                    tokens += bool(choice.delta.content)
                    if tokens == self.text_is and choice.delta.content:
                        self._have_text += 1
                        click.echo(f"{self._have_text} of {self.count} have text")


async def run(base_urls: Sequence[str], crowd: Crowd) -> list[Reply]:
    """Let a crowd read from servers in turn."""
    clients = [openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) for url in base_urls]
    try:
        return await crowd.read(clients)
    finally:
        for client in clients:
            await client.close()


@click.command()
@click.argument("base_urls", nargs=-1, required=True)
@click.option("--replies", type=click.Path(path_type=Path), required=True, help="Write here what each reader got.")
@click.option("--readers", default=24, show_default=True)
@click.option("--model", default="healthy", show_default=True)
@click.option("--max-tokens", default=80, show_default=True)
@click.option("--within", default=2.0, show_default=True, help="Seconds within which all of them begin.")
@click.option("--text-is", default=8, show_default=True, help="A reader `has text` from so many chunks on.")
def main(
    base_urls: tuple[str, ...], replies: Path, readers: int, model: str, max_tokens: int, within: float, text_is: int
) -> None:
    """Read replies from BASE_URLS."""
    otel_llm.instrument()  # the one line
    crowd = Crowd(readers, model, max_tokens, within, text_is)
    write(replies, asyncio.run(run(base_urls, crowd)))
    otel_llm.flush()


if __name__ == "__main__":
    main()
