"""The OpenAI SDK, of any major version: chat, responses, text completions; sync, async, helpers and raw responses."""

import openai

QUESTION = [{"role": "user", "content": "Tell me something."}]


def _client(ask):
    return openai.OpenAI(base_url=ask.v1, api_key="none", max_retries=0)


def _async_client(ask):
    return openai.AsyncOpenAI(base_url=ask.v1, api_key="none", max_retries=0)


def _said(chunk):
    return "".join(choice.delta.content or "" for choice in chunk.choices)


def _delta(event):
    return event.delta if event.type == "response.output_text.delta" else ""


def _line(line):
    return line if '"w' in line else ""


def sync(ask):
    with _client(ask) as client:
        ask.read(client.chat.completions.create(model=ask.model, messages=QUESTION, stream=True), _said)


async def asynchronous(ask):
    async with _async_client(ask) as client:
        await ask.aread(await client.chat.completions.create(model=ask.model, messages=QUESTION, stream=True), _said)


def two_choices(ask):
    with _client(ask) as client:
        ask.read(client.chat.completions.create(model=ask.model, messages=QUESTION, stream=True, n=2), _said)


def helper(ask):
    chat = "chat" if hasattr(openai.resources.chat.Completions, "stream") else "beta"
    with _client(ask) as client:
        resource = client.chat if chat == "chat" else client.beta.chat
        with resource.completions.stream(model=ask.model, messages=QUESTION) as stream:
            ask.read(stream, lambda event: event.delta if event.type == "content.delta" else "")


def responses(ask):
    with _client(ask) as client:
        ask.read(client.responses.create(model=ask.model, input="?", stream=True), _delta)


async def responses_async(ask):
    async with _async_client(ask) as client:
        await ask.aread(await client.responses.create(model=ask.model, input="?", stream=True), _delta)


def responses_helper(ask):
    with _client(ask) as client, client.responses.stream(model=ask.model, input="?") as stream:
        ask.read(stream, _delta)


def completions(ask):
    with _client(ask) as client:
        stream = client.completions.create(model=ask.model, prompt="?", stream=True)
        ask.read(stream, lambda chunk: "".join(choice.text for choice in chunk.choices))


def raw_parsed(ask):
    with _client(ask) as client:
        raw = client.chat.completions.with_raw_response.create(model=ask.model, messages=QUESTION, stream=True)
        ask.read(raw.parse(), _said)


async def raw_parsed_async(ask):
    async with _async_client(ask) as client:
        raw = await client.chat.completions.with_raw_response.create(model=ask.model, messages=QUESTION, stream=True)
        await ask.aread(raw.parse(), _said)


def raw_lines(ask):
    with (
        _client(ask) as client,
        client.chat.completions.with_streaming_response.create(
            model=ask.model, messages=QUESTION, stream=True
        ) as response,
    ):
        ask.read(response.iter_lines(), _line)


async def raw_lines_async(ask):
    async with (
        _async_client(ask) as client,
        client.chat.completions.with_streaming_response.create(
            model=ask.model, messages=QUESTION, stream=True
        ) as response,
    ):
        await ask.aread(response.iter_lines(), _line)


def azure(ask):
    with openai.AzureOpenAI(azure_endpoint=ask.url, api_key="none", api_version="2024-10-21", max_retries=0) as client:
        ask.read(client.chat.completions.create(model=ask.model, messages=QUESTION, stream=True), _said)
