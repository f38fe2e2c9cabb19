"""agno: an agent's streamed run, sync and async."""

from agno.agent import Agent
from agno.models.openai import OpenAIChat, OpenAIResponses


def _agent(ask, kind=OpenAIChat):
    return Agent(model=kind(id=ask.model, base_url=ask.v1, api_key="none", max_retries=0), telemetry=False)


def _said(event):
    return event.content if event.event == "RunContent" else ""


def sync(ask):
    ask.read(_agent(ask).run("?", stream=True), _said)


async def asynchronous(ask):
    await ask.aread(_agent(ask).arun("?", stream=True), _said)


def responses(ask):
    ask.read(_agent(ask, OpenAIResponses).run("?", stream=True), _said)
