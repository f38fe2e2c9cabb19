"""A bare server that streams at a pace and keeps when it wrote each token, by its own clock (monotonic ns).

A program of its own, so that it shares no interpreter with the client. Every stream has a pace of its own offset: the
writes of many streams are spread over time, as those of many replies are. `GET /truth` gives the times by prompt; every
other `GET` says which model it serves.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any, Final

from relay_load.engine import ABOUT, CHUNK, DONE, HEAD, framed, last_events, role_event

FIRST_S: Final = 0.05
TRUTH: Final[dict[str, list[int]]] = {}
HEADERS: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"


def text_event(number: int, prompt: int) -> bytes:
    """Return the event of one token with running usage, as vLLM sends it."""
    usage = b'{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}' % (prompt, prompt + number, number)
    return (
        CHUNK + b'"model":"bench","choices":[{"index":0,"delta":{"content":"word "},"logprobs":null,'
        b'"finish_reason":null}],"usage":%b}\n\n' % usage
    )


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pace: float) -> None:
    """Answer the requests of one connection."""
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            if head.startswith(b"get"):
                asked = head.startswith(b"get /truth")
                body = json.dumps(TRUTH if asked else ABOUT).encode()
                writer.write(HEADERS % len(body) + body)
                if asked:
                    TRUTH.clear()
                continue
            length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
            await stream(writer, json.loads(await reader.readexactly(length)), pace)
    except (ConnectionError, asyncio.IncompleteReadError):
        writer.close()


async def stream(writer: asyncio.StreamWriter, request: dict[str, Any], pace: float) -> None:
    """Write a reply of as many tokens as are asked for."""
    prompt = request["messages"][0]["content"]
    if isinstance(prompt, list):  # of parts, as vLLM's client sends it
        prompt = "".join(part["text"] for part in prompt)
    tokens = request.get("max_completion_tokens") or request["max_tokens"]
    times = TRUTH[prompt] = []
    writer.write(HEAD + framed(role_event(None)))
    loop = asyncio.get_running_loop()
    due_s = loop.time() + FIRST_S
    for number in range(1, tokens + 1):
        await asyncio.sleep(max(0.0, due_s - loop.time()))
        times.append(time.monotonic_ns())
        writer.write(framed(text_event(number, 16)))
        due_s += 1 / pace
    writer.write(framed(last_events(ids=False, usage=(16, tokens))) + b"0\r\n\r\n")


async def main(pace: float) -> None:
    """Print the port, then serve."""
    server = await asyncio.start_server(lambda r, w: serve(r, w, pace), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    assert DONE
    asyncio.run(main(float(sys.argv[1])))
