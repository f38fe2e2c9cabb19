"""llama-index: a model's stream, sync and async, chat and responses."""

from llama_index.core.llms import ChatMessage
from llama_index.llms.openai import OpenAI, OpenAIResponses, utils

QUESTION = [ChatMessage(role="user", content="Tell me something.")]


def _model(ask, kind=OpenAI):
    utils.ALL_AVAILABLE_MODELS[ask.model] = 8192  # unknown names are refused
    utils.CHAT_MODELS[ask.model] = 8192
    return kind(model=ask.model, api_base=ask.v1, api_key="none", max_retries=0)


def _said(response):
    return response.delta


def sync(ask):
    ask.read(_model(ask).stream_chat(QUESTION), _said)


async def asynchronous(ask):
    await ask.aread(await _model(ask).astream_chat(QUESTION), _said)


def responses(ask):
    ask.read(_model(ask, OpenAIResponses).stream_chat(QUESTION), _said)
