"""cohere: v2 chat, sync and async."""

import cohere

QUESTION = [{"role": "user", "content": "Tell me something."}]


def _said(event):
    return event.delta.message.content.text if event.type == "content-delta" else ""


def sync(ask):
    client = cohere.ClientV2(api_key="none", base_url=ask.url)
    ask.read(client.chat_stream(model=ask.model, messages=QUESTION, request_options={"max_retries": 0}), _said)


async def asynchronous(ask):
    client = cohere.AsyncClientV2(api_key="none", base_url=ask.url)
    stream = client.chat_stream(model=ask.model, messages=QUESTION, request_options={"max_retries": 0})
    await ask.aread(stream, _said)
