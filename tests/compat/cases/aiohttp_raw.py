"""aiohttp: streams of several wires, read by hand."""

import aiohttp


def _line(line):
    return line.decode() if b'"w' in line else ""


async def _read(ask, path, **body):
    async with (
        aiohttp.ClientSession() as session,
        session.post(ask.url + path, json=body, raise_for_status=True) as response,
    ):
        await ask.aread(response.content, _line)


async def openai(ask):
    await _read(ask, "/v1/chat/completions", model=ask.model, stream=True, messages=[])


async def anthropic(ask):
    await _read(ask, "/v1/messages", model=ask.model, stream=True, messages=[])


async def gemini(ask):
    await _read(ask, f"/v1beta/models/{ask.model}:streamGenerateContent?alt=sse", contents=[])


async def ollama(ask):
    await _read(ask, "/api/chat", model=ask.model, messages=[])
