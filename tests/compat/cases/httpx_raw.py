"""httpx: streams of several wires, read by hand, sync and async."""

import re

import httpx


def _line(line):
    return line if re.search(r'"w\d', line) else ""


def _read(ask, path, **body):
    with httpx.Client(timeout=10) as client, client.stream("POST", ask.url + path, json=body) as response:
        response.raise_for_status()
        ask.read(response.iter_lines(), _line)


def openai(ask):
    _read(ask, "/v1/chat/completions", model=ask.model, stream=True, messages=[])


async def openai_async(ask):
    body = {"model": ask.model, "stream": True, "messages": []}
    async with (
        httpx.AsyncClient(timeout=10) as client,
        client.stream("POST", ask.v1 + "/chat/completions", json=body) as response,
    ):
        response.raise_for_status()
        await ask.aread(response.aiter_lines(), _line)


def anthropic(ask):
    _read(ask, "/v1/messages", model=ask.model, stream=True, messages=[])


def gemini(ask):
    _read(ask, f"/v1beta/models/{ask.model}:streamGenerateContent?alt=sse", contents=[])


def gemini_array(ask):
    _read(ask, f"/v1beta/models/{ask.model}:streamGenerateContent", contents=[])


def ollama(ask):
    _read(ask, "/api/chat", model=ask.model, messages=[])


def cohere(ask):
    _read(ask, "/v2/chat", model=ask.model, stream=True, messages=[])


def tgi(ask):
    with (
        httpx.Client(timeout=10, headers={"x-wire-reply": ask.model}) as client,
        client.stream("POST", ask.url + "/generate_stream", json={"inputs": "?"}) as response,
    ):
        response.raise_for_status()
        ask.read(response.iter_lines(), _line)
