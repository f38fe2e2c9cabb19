"""mistralai: chat, sync and async."""

from mistralai.client import Mistral

QUESTION = [{"role": "user", "content": "Tell me something."}]


def _client(ask):
    return Mistral(api_key="none", server_url=ask.url + "/mistral")


def _said(event):
    return event.data.choices[0].delta.content


def sync(ask):
    with _client(ask) as client:
        ask.read(client.chat.stream(model=ask.model, messages=QUESTION), _said)


async def asynchronous(ask):
    async with _client(ask) as client:
        await ask.aread(await client.chat.stream_async(model=ask.model, messages=QUESTION), _said)
