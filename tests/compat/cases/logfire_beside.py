"""The OpenAI and Anthropic SDKs, instrumented by Logfire as well, which suppresses other instrumentations inside."""

import anthropic
import logfire
import openai

logfire.configure(send_to_logfire=False, console=False)
logfire.instrument_openai()
logfire.instrument_anthropic()

CHAT = {"messages": [{"role": "user", "content": "Tell me something."}], "stream": True}
MESSAGE = {"max_tokens": 99, "messages": [{"role": "user", "content": "Tell me something."}], "stream": True}


def _text(chunk):
    return "".join(choice.delta.content or "" for choice in chunk.choices)


def _said(event):
    return event.delta.text if event.type == "content_block_delta" else ""


def openai_sync(ask):
    with openai.OpenAI(base_url=ask.v1, api_key="none", max_retries=0) as client:
        ask.read(client.chat.completions.create(model=ask.model, **CHAT), _text)


async def openai_async(ask):
    async with openai.AsyncOpenAI(base_url=ask.v1, api_key="none", max_retries=0) as client:
        await ask.aread(await client.chat.completions.create(model=ask.model, **CHAT), _text)


def anthropic_sync(ask):
    with anthropic.Anthropic(base_url=ask.url, api_key="none", max_retries=0) as client:
        ask.read(client.messages.create(model=ask.model, **MESSAGE), _said)


async def anthropic_async(ask):
    async with anthropic.AsyncAnthropic(base_url=ask.url, api_key="none", max_retries=0) as client:
        await ask.aread(await client.messages.create(model=ask.model, **MESSAGE), _said)
