"""The Anthropic SDK: messages; sync, async, helpers and raw responses."""

import anthropic

ASKED = {"max_tokens": 99, "messages": [{"role": "user", "content": "Tell me something."}]}


def _client(ask):
    return anthropic.Anthropic(base_url=ask.url, api_key="none", max_retries=0)


def _async_client(ask):
    return anthropic.AsyncAnthropic(base_url=ask.url, api_key="none", max_retries=0)


def _said(event):
    return event.delta.text if event.type == "content_block_delta" else ""


def sync(ask):
    with _client(ask) as client:
        ask.read(client.messages.create(model=ask.model, stream=True, **ASKED), _said)


async def asynchronous(ask):
    async with _async_client(ask) as client:
        await ask.aread(await client.messages.create(model=ask.model, stream=True, **ASKED), _said)


def helper(ask):
    with _client(ask) as client, client.messages.stream(model=ask.model, **ASKED) as stream:
        ask.read(stream.text_stream)


async def helper_async(ask):
    async with _async_client(ask) as client, client.messages.stream(model=ask.model, **ASKED) as stream:
        await ask.aread(stream.text_stream)


def raw_parsed(ask):
    with _client(ask) as client:
        raw = client.messages.with_raw_response.create(model=ask.model, stream=True, **ASKED)
        ask.read(raw.parse(), _said)


def raw_lines(ask):
    with (
        _client(ask) as client,
        client.messages.with_streaming_response.create(model=ask.model, stream=True, **ASKED) as response,
    ):
        ask.read(response.iter_lines(), lambda line: line if '"w' in line else "")
