"""What a run tells of its backend: the time between tokens, if it is known. A clock that a test sets."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from otel_llm.relay.attempts.run import Run
from otel_llm.relay.backends.backend import Backend
from otel_llm.relay.backends.backends import Backends
from otel_llm.relay.splice.large_body import LARGE_BYTES
from otel_llm.relay.splice.line import Line
from otel_llm.relay.splice.reply import Reply
from otel_llm.relay.splice.request import OwnedRequest
from otel_llm.relay.splice.upstream_response import UpstreamResponse

BODY: dict[str, Any] = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "tell me"}]}
MS = 1_000_000


class Body:
    """A response's body: `come` is what arrives, `read` once it is asked for or before."""

    def __init__(self) -> None:
        self.total_bytes = 0
        self._arrived: list[bytes] = []
        self._later: list[bytes] = []

    def come(self, data: bytes, *, before: bool = False) -> None:
        if before:
            self.total_bytes += len(data)
            self._arrived.append(data)
        else:
            self._later.append(data)

    async def readany(self) -> bytes:
        self.total_bytes += sum(map(len, self._later))
        data = b"".join(self._arrived + self._later)
        self._arrived, self._later = [], []
        return data

    def is_eof(self) -> bool:
        return True


class Served:
    """A run whose instants and bytes a test chooses."""

    def __init__(self, kind: str = "vllm", choices: int = 1) -> None:
        self.now_ns = 1_000 * MS
        self.backend = Backend("a", "http://a", kind)
        self.loads = Backends([self.backend], lambda: self.now_ns / 1e9)
        self.again(choices)

    def again(self, choices: int = 1) -> None:
        """Begin a run on the same backend, as a resumption does."""
        owned = OwnedRequest.parse("/v1/chat/completions", json.dumps({**BODY, "n": choices}).encode())
        assert owned is not None
        self.body = Body()
        response: Any = SimpleNamespace(close=lambda: None, content=self.body)
        self.loads.begin(self.backend, 7, 7)
        upstream_response = UpstreamResponse(Reply(owned), self.backend.kind)
        self.run = Run(
            self.backend,
            response,
            upstream_response,
            self.loads,
            7,
            one_prompt=choices == 1,
            clock_ns=lambda: self.now_ns,
        )

    def reads(self, after_ms: int, *tokens: int, ids: bool = True, before: bool = False) -> None:
        """Let chunks of so many tokens come, and be read so much later."""
        self.now_ns += after_ms * MS
        for count in tokens:
            choice: dict[str, Any] = {"index": 0, "delta": {"content": "x" * count}, "finish_reason": None}
            if ids:
                choice["token_ids"] = list(range(count))
            self.body.come(b"data: " + json.dumps({"id": "i", "choices": [choice]}).encode() + b"\n\n", before=before)
        asyncio.run(self.run.read())

    def known_ms(self, streams: int = 1) -> float | None:
        found = self.backend.gaps.predict(streams, self.now_ns / 1e9)
        return None if found is None else found * 1e3


def test_the_time_between_two_tokens_is_an_iteration() -> None:
    served = Served()
    served.reads(500, 1)
    assert served.known_ms() is None, "the first token gives none: that was the prefill"
    served.reads(20, 1)
    assert served.known_ms() == pytest.approx(20)


@pytest.mark.parametrize(("tokens", "ids", "expected_ms"), [((4,), True, 20), ((1, 3), True, 20), ((1, 1), False, 40)])
def test_a_gap_counts_by_its_tokens(tokens: tuple[int, ...], ids: bool, expected_ms: float) -> None:
    """Without ids a chunk is taken for one token."""
    served = Served()
    served.reads(500, 1, ids=ids)
    served.reads(80, *tokens, ids=ids)
    assert served.known_ms() == pytest.approx(expected_ms)


def test_a_chunk_without_tokens_begins_and_ends_no_gap() -> None:
    served = Served()
    served.reads(10, 0)
    served.reads(500, 1)
    served.reads(10, 0)
    served.reads(10, 1)
    assert served.known_ms() == pytest.approx(20)


def test_bytes_that_were_there_already_tell_nothing_of_their_time() -> None:
    """The relay did not read for a while, as behind a slow client: neither gap beside that token is known."""
    served = Served()
    served.reads(500, 1)
    served.reads(900, 1, before=True)
    served.reads(1, 1)
    assert served.known_ms() is None
    served.reads(20, 1)
    assert served.known_ms() == pytest.approx(20)


def test_several_choices_give_no_gaps() -> None:
    served = Served(choices=2)
    for _ in range(3):
        served.reads(20, 1)
    assert served.known_ms() is None


def test_a_resumption_begins_anew_and_counts_with_all_streams() -> None:
    served = Served()
    served.reads(500, 1)
    served.again()
    served.reads(300, 1)
    assert served.known_ms() is None
    served.reads(30, 1)
    assert [served.known_ms(streams) for streams in (1, 2, 4)] == pytest.approx([30, 30, 60]), "known of two streams"


def test_a_prompt_waits_until_the_first_token() -> None:
    served = Served()
    served.reads(10, 0)
    assert served.backend.waiting_tokens == 7
    served.reads(10, 1)
    assert served.backend.waiting_tokens == 0
    served.run.close()
    assert (served.backend.waiting_tokens, served.backend.streams) == (0, 0)


def test_a_run_that_is_closed_before_its_first_token_takes_its_prompt_along() -> None:
    served = Served()
    served.run.close()
    served.reads(10, 1)
    assert (served.backend.waiting_tokens, served.backend.streams, served.backend.tokens) == (0, 0, 0)


def test_what_a_thread_reads_is_not_lost_if_the_wait_for_it_ends() -> None:
    """The ids of a long prompt, and then the end of the body behind a large rest, each with waits that are ended."""

    async def read(served: Served) -> list[Line]:
        while True:
            reading = asyncio.create_task(served.run.read())
            while not (served.run.unread or reading.done()):
                await asyncio.sleep(0)
            if reading.done():
                return reading.result()
            reading.cancel()
            await asyncio.wait({reading})
            assert reading.cancelled()
            assert not served.run.over
            return await served.run.read()

    async def go() -> None:
        served = Served()
        ids = list(range(100_000, 100_000 + LARGE_BYTES // 6))
        chunk = {"id": "i", "prompt_token_ids": ids, "choices": [{"index": 0, "delta": {"role": "assistant"}}]}
        served.body.come(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        (line,) = await read(served)
        assert line.chunk is not None
        assert line.chunk.prompt_ids is not None
        assert len(line.chunk.prompt_ids) == len(ids)
        served.body.come(b"data: " + b"x" * LARGE_BYTES)
        assert await served.run.read() == []
        (rest,) = await read(served)
        assert len(rest.raw) > LARGE_BYTES
        assert served.run.over

    asyncio.run(go())
