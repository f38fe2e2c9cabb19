"""openai-agents: a streamed run, over responses and chat completions."""

from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, set_tracing_disabled
from openai import AsyncOpenAI

set_tracing_disabled(True)


def _delta(event):
    if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
        return event.data.delta
    return ""


async def _read(ask, make):
    client = AsyncOpenAI(base_url=ask.v1, api_key="none", max_retries=0)
    agent = Agent(name="agent", model=make(model=ask.model, openai_client=client))
    run = Runner.run_streamed(agent, "Tell me something.")
    await ask.aread(run.stream_events(), _delta)


async def responses(ask):
    await _read(ask, OpenAIResponsesModel)


async def chat(ask):
    await _read(ask, OpenAIChatCompletionsModel)
