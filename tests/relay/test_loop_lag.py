"""How late the relay's loop is: shown, and said of what waited for it, so that no backend is blamed."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from support.patience import WAIT_S
from support.relay.fake_engine import FakeEngine
from support.relay.rig import rig
from support.relay.scripted_engine import ScriptedEngine

from otel_llm.relay.loop_lag import BEAT_S, LoopLag

CHAT: dict[str, Any] = {
    "model": "fake",
    "stream": True,
    "max_tokens": 5,
    "messages": [{"role": "user", "content": "x"}],
}
MS = 1_000_000
HELD_S = 0.3


def test_what_is_received_behind_a_late_beat_may_have_waited_since_it_was_due() -> None:
    async def go() -> None:
        seen: list[float] = []
        now_ns = 1_000 * MS
        lag = LoopLag(seen.append, lambda: now_ns)
        lag.start()
        due_ns = now_ns + round(BEAT_S * 1e9)
        now_ns = due_ns + 2 * MS  # usual
        lag.beat()
        assert lag.arrived_ns(due_ns + MS) == due_ns + MS
        due_ns = now_ns + round(BEAT_S * 1e9)
        now_ns = due_ns + 200 * MS
        lag.beat()
        assert lag.arrived_ns(due_ns + 201 * MS) == due_ns  # it is received in the same turn of the loop
        for _ in range(3):
            await asyncio.sleep(0)
        lag.stop()
        assert seen == pytest.approx([0.002, 0.2])
        assert [lag.arrived_ns(due_ns + ms * MS) - due_ns for ms in (-1, 0, 1, 200, 201)] == [
            -MS,
            0,
            0,
            0,
            201 * MS,
        ]

    asyncio.run(go())


def chunk(text: str, finish: str | None = None) -> bytes:
    reason = "null" if finish is None else f'"{finish}"'
    head = '{"id":"c","object":"chat.completion.chunk","created":1,"model":"m"'
    choice = f'{{"index":0,"delta":{{"content":"{text}"}},"finish_reason":{reason}}}'
    return f'data: {head},"choices":[{choice}]}}\n\n'.encode()


@pytest.mark.parametrize("held", [True, False], ids=["held up", "not"])
def test_a_loop_that_is_held_up_is_said_in_metrics_and_row(tmp_path: Path, held: bool) -> None:
    """The second chunk is written by a thread while the loop stands still."""

    async def go() -> None:
        goes_on = asyncio.Event()
        engine: FakeEngine = ScriptedEngine(chunk("a"), goes_on, chunk("c", "stop"), b"data: [DONE]\n\n")
        async with rig(tmp_path, engine) as running, asyncio.timeout(WAIT_S):
            url, began_s = running.url + "/v1/chat/completions", time.monotonic()
            async with running.session.post(url, json=CHAT) as response:
                await response.content.readuntil(b"\n\n")
                await asyncio.sleep(5 * BEAT_S)
                if held:
                    (number,) = sockets_of(engine.port)
                    data = chunk("b")
                    os.write(number, b"%x\r\n%s\r\n" % (len(data), data))
                    time.sleep(HELD_S)
                    os.close(number)
                goes_on.set()
                await response.read()
            took_s = time.monotonic() - began_s
            found = await running.metrics()
            (row,) = (await running.get("/v1/streams"))["recent"]

            def over(name: str, bound: str) -> float:
                return found[f"{name}_count"] - found[f'{name}_bucket{{le="{bound}"}}']

            assert (over("otel_llm_relay_loop_lag_seconds", "0.1") > 0) >= held
            assert (over("otel_llm_relay_added_seconds", "0.1") > 0) >= held
            if held:  # a busy machine may hold up the loop for longer
                assert HELD_S / 2 <= row["relay_lag_s"] <= took_s
        (request,) = running.recorded.requests()
        reported = (request.attributes or {}).get("otel_llm.relay.lag_seconds")
        assert reported == row["relay_lag_s"]

    asyncio.run(go())


def sockets_of(port: int) -> list[int]:
    """Return a copy of the server's end of each connection to a port of this process that is not closed."""
    found: list[int] = []
    for name in Path("/proc/self/fd").iterdir():
        try:
            number = os.dup(int(name.name))
            one = socket.socket(fileno=number)
        except OSError:
            continue
        try:
            mine = one.family == socket.AF_INET and one.getsockname()[1] == port and one.getpeername()
        except OSError:
            mine = False
        if mine:
            found.append(one.detach())
        else:
            one.close()
    return found
