"""groq: chat, sync and async."""

import groq

QUESTION = [{"role": "user", "content": "Tell me something."}]


def _said(chunk):
    return "".join(choice.delta.content or "" for choice in chunk.choices)


def sync(ask):
    with groq.Groq(api_key="none", base_url=ask.url + "/groq", max_retries=0) as client:
        ask.read(client.chat.completions.create(model=ask.model, messages=QUESTION, stream=True), _said)


async def asynchronous(ask):
    async with groq.AsyncGroq(api_key="none", base_url=ask.url + "/groq", max_retries=0) as client:
        await ask.aread(await client.chat.completions.create(model=ask.model, messages=QUESTION, stream=True), _said)
