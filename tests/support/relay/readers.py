"""Readers of streamed replies, many at once: what each got, token by token, and when."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp


@dataclass
class Reply:
    """One reply as its client has it; `times_ns` are the instants (monotonic) of the chunks that brought text."""

    text: str = ""
    reasoning: str = ""
    calls: str = ""
    """Names and arguments of tool calls."""
    logprobs: list[str] = field(default_factory=list)
    """The tokens whose log probabilities came."""
    ids: list[int] = field(default_factory=list)
    finish: str | None = None
    usage: dict[str, Any] | None = None
    errors: list[dict[str, Any]] = field(default_factory=list)
    broken: list[bytes] = field(default_factory=list)
    done: bool = False
    heads: set[tuple[Any, ...]] = field(default_factory=set)
    begun_ns: int = 0
    times_ns: list[int] = field(default_factory=list)
    status: int = 0

    @property
    def gap_s(self) -> float:
        """The longest wait between two texts, 0 without two."""
        pairs = zip(self.times_ns, self.times_ns[1:], strict=False)
        return max((after - before for before, after in pairs), default=0) / 1e9

    def content(self) -> tuple[Any, ...]:
        """What no relay may change."""
        return (
            self.text,
            self.reasoning,
            self.calls,
            tuple(self.logprobs),
            tuple(self.ids),
            self.finish,
            json.dumps(self.usage, sort_keys=True),
        )


async def read(
    session: aiohttp.ClientSession,
    url: str,
    body: dict[str, Any],
    *,
    headers: Mapping[str, str] | None = None,
    between: Callable[[Reply], Awaitable[None]] | None = None,
    reported: object = None,
) -> Reply:
    """Read one reply to its end, whatever that is; `between` is awaited behind each reading.

    `reported` is handed to the session's traces.
    """
    reply = Reply(begun_ns=time.monotonic_ns())
    path = "/completions" if "prompt" in body else "/chat/completions"
    try:
        async with session.post(
            url + path,
            json={"stream": True, **body},
            headers=headers,
            allow_redirects=False,
            trace_request_ctx=reported,
        ) as response:
            reply.status = response.status
            tail = b""
            async for data in response.content.iter_any():
                now_ns = time.monotonic_ns()
                *lines, tail = (tail + data).split(b"\n")
                for line in lines:
                    _take(reply, line.strip(), now_ns)
                if between is not None:
                    await between(reply)
    except aiohttp.ClientError as problem:
        reply.errors.append({"client": repr(problem)})
    return reply


def _take(reply: Reply, line: bytes, now_ns: int) -> None:
    if not line.startswith(b"data: "):
        return
    if line == b"data: [DONE]":
        reply.done = True
        return
    try:
        chunk = json.loads(line[6:])
    except ValueError:
        reply.broken.append(line)
        return
    if "error" in chunk:
        reply.errors.append(chunk["error"])
        return
    reply.heads.add(tuple(chunk.get(key) for key in ("id", "object", "created", "model")))
    usage = chunk.get("usage")
    if usage is not None:
        reply.usage = {key: value for key, value in usage.items() if value is not None}
    for choice in chunk["choices"]:
        delta = choice.get("delta")
        text = choice["text"] if delta is None else delta.get("content") or ""
        reply.text += text
        if delta is not None and choice.get("logprobs"):
            reply.logprobs += [one["token"] for one in choice["logprobs"]["content"]]
        reply.reasoning += (delta or {}).get("reasoning") or ""
        for stated in (delta or {}).get("tool_calls", ()):
            reply.calls += stated["function"].get("name", "") + stated["function"].get("arguments", "")
        reply.ids += choice.get("token_ids") or []
        reply.finish = choice["finish_reason"] or reply.finish
        if text:
            reply.times_ns.append(now_ns)


def read_all(urls: Sequence[str], bodies: Iterable[dict[str, Any]], apart_s: float = 0.0) -> list[Reply]:
    """Read replies at once, spread over the URLs in turn, each begun `apart_s` after the one before."""

    async def one(session: aiohttp.ClientSession, number: int, body: dict[str, Any]) -> Reply:
        await asyncio.sleep(number * apart_s)
        return await read(session, urls[number % len(urls)], body)

    async def all_of_them() -> list[Reply]:
        timeout = aiohttp.ClientTimeout(total=None, sock_read=120)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
            return await asyncio.gather(*(one(session, number, body) for number, body in enumerate(bodies)))

    return asyncio.run(all_of_them())
