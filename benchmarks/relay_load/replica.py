"""A simulated engine in real time: continuous batching whose iterations take longer the more there is to do.

`python -m relay_load.replica PORT SLOWER` serves chats. In each iteration every running reply gets a token, and what is
left of the iteration's tokens goes to prompts in the order of their arrival, in parts if need be. An iteration takes
`SLOWER` times base + per_decode B + per_kv_token KV + per_chunk_token C: B replies, KV tokens of their contexts, C
tokens of prompts. A prompt has a token for every four bytes of its text. `GET /served` says what was served.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import deque
from dataclasses import dataclass
from itertools import chain
from typing import Final

from relay_load import engine

MOST_RUNNING: Final = 48
ITERATION_TOKENS: Final = 1024
LATE_S: Final = 0.005
"""An iteration that ends so much later than it should shows that this machine is too busy for the simulation."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What an iteration takes, in s; of the order of an 8B model on a small GPU."""

    base: float = 0.010
    per_decode: float = 0.0002
    per_kv_token: float = 0.000_000_5
    per_chunk_token: float = 0.000_08

    def iteration_s(self, decodes: int, kv_tokens: int, chunk_tokens: int) -> float:
        """Return how long an iteration takes."""
        of_batch = self.base + self.per_decode * decodes + self.per_kv_token * kv_tokens
        return of_batch + self.per_chunk_token * chunk_tokens


@dataclass(slots=True)
class Chat:
    """One request: what is left of its prompt, how many tokens it has and gets, and where they go."""

    prompt: int
    output: int
    ids: bool
    writer: asyncio.StreamWriter
    over: asyncio.Event
    left: int
    count: int = 0

    def write(self) -> None:
        """Write one more token, what begins a chat before the first, and the end behind the last."""
        if self.count == 0:
            of_prompt = b"[%b]" % b",".join([b"7"] * self.prompt) if self.ids else None
            self.writer.write(engine.framed(engine.role_event(of_prompt)))
        self.count += 1
        self.writer.write(engine.framed(engine.token_event(10 + self.count % 1000, ids=self.ids)))
        if self.count == self.output:
            self.writer.write(engine.framed(engine.last_events(ids=self.ids)) + b"0\r\n\r\n")
            self.over.set()

    @property
    def gone(self) -> bool:
        """Tell whether its client has left."""
        return self.writer.transport.is_closing()


class Replica:
    """One engine."""

    def __init__(self, slower: float, costs: Costs) -> None:
        self.slower = slower
        self.costs = costs
        self.waiting: deque[Chat] = deque()
        self.running: list[Chat] = []
        self.work = asyncio.Event()
        self.served: dict[str, int] = {"requests": 0, "tokens": 0, "iterations": 0, "late": 0}

    async def iterate(self) -> None:
        """Run iterations back to back while there is work."""
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            if not self.running and not self.waiting:
                self.work.clear()
                await self.work.wait()
                due_s = loop.time()
            decoding = [chat for chat in self.running if not chat.left]
            parts = self.parts(ITERATION_TOKENS - len(decoding))
            kv_tokens = sum(chat.prompt + chat.count for chat in decoding)
            due_s += self.slower * self.costs.iteration_s(len(decoding), kv_tokens, sum(tokens for _, tokens in parts))
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            self.served["iterations"] += 1
            self.served["late"] += loop.time() - due_s > LATE_S
            for chat, tokens in parts:
                chat.left -= tokens
            for chat in chain(decoding, (chat for chat, _ in parts if not chat.left)):
                if chat.gone:
                    chat.over.set()
                else:
                    chat.write()
            self.running = [chat for chat in self.running if not chat.over.is_set()]

    def parts(self, tokens: int) -> list[tuple[Chat, int]]:
        """Give an iteration's tokens to prompts: to those begun, then to those that wait, which now run."""
        found: list[tuple[Chat, int]] = []
        while self.waiting and len(self.running) < MOST_RUNNING and tokens > sum(chat.left for chat in self.running):
            self.running.append(self.waiting.popleft())
        for chat in self.running:
            part = min(chat.left, tokens)
            if part > 0:
                found.append((chat, part))
                tokens -= part
        return found

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection."""
        try:
            while (body := await engine.request(reader, writer, self.served)) is not None:
                asked = json.loads(body)
                ids = asked.get("return_token_ids") is True
                prompt = max(1, sum(len(message["content"]) for message in asked["messages"]) // 4)
                writer.write(engine.HEAD)
                chat = Chat(prompt, asked["max_tokens"], ids, writer, asyncio.Event(), left=prompt)
                self.served["requests"] += 1
                self.served["tokens"] += prompt + chat.output
                self.waiting.append(chat)
                self.work.set()
                await chat.over.wait()
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()


async def main(port: int, slower: float) -> None:
    """Serve until the process is ended."""
    replica = Replica(slower, Costs())
    iterating = asyncio.create_task(replica.iterate())
    server = await asyncio.start_server(replica.serve, "127.0.0.1", port, backlog=1024)
    async with server:
        await asyncio.gather(server.serve_forever(), iterating)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2])))
