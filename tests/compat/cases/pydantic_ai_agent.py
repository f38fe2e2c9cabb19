"""pydantic-ai: an agent's text, over the models of OpenAI (chat and responses), Anthropic and Google."""

from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.google import GoogleProvider
from pydantic_ai.providers.openai import OpenAIProvider


async def _read(ask, model):
    async with Agent(model).run_stream("Tell me something.") as result:
        await ask.aread(result.stream_text(delta=True, debounce_by=None))


def _openai(ask):
    return OpenAIProvider(openai_client=AsyncOpenAI(base_url=ask.v1, api_key="none", max_retries=0))


async def openai(ask):
    await _read(ask, OpenAIChatModel(ask.model, provider=_openai(ask)))


async def openai_responses(ask):
    await _read(ask, OpenAIResponsesModel(ask.model, provider=_openai(ask)))


async def anthropic(ask):
    client = AsyncAnthropic(base_url=ask.url, api_key="none", max_retries=0)
    await _read(ask, AnthropicModel(ask.model, provider=AnthropicProvider(anthropic_client=client)))


async def google(ask):
    await _read(ask, GoogleModel(ask.model, provider=GoogleProvider(api_key="none", base_url=ask.url)))
