"""Haystack: chat generators with a streaming callback, sync and async."""

from haystack.components.generators.chat import OpenAIChatGenerator, OpenAIResponsesChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.utils import Secret

QUESTION = [ChatMessage.from_user("Tell me something.")]


def _generator(ask, kind, callback):
    return kind(
        model=ask.model,
        api_base_url=ask.v1,
        api_key=Secret.from_token("none"),
        max_retries=0,
        streaming_callback=callback,
    )


def _got(ask):
    def callback(chunk):
        if chunk.content:
            ask.got.append(chunk.content)

    return callback


def sync(ask):
    return _generator(ask, OpenAIChatGenerator, _got(ask)).run(QUESTION)["replies"][0].text


async def asynchronous(ask):
    got = _got(ask)

    async def callback(chunk):
        got(chunk)

    result = await _generator(ask, OpenAIChatGenerator, callback).run_async(QUESTION)
    return result["replies"][0].text


def responses(ask):
    return _generator(ask, OpenAIResponsesChatGenerator, _got(ask)).run(QUESTION)["replies"][0].text
