"""AutoGen: a model client's stream, and an agent's."""

from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import ModelInfo, UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient

INFO = ModelInfo(vision=False, function_calling=True, json_output=False, family="unknown", structured_output=False)


def _client(ask):
    return OpenAIChatCompletionClient(model=ask.model, base_url=ask.v1, api_key="none", max_retries=0, model_info=INFO)


async def client(ask):
    stream = _client(ask).create_stream([UserMessage(content="?", source="user")])
    await ask.aread(stream, lambda piece: piece if isinstance(piece, str) else "")


async def agent(ask):
    made = AssistantAgent("agent", model_client=_client(ask), model_client_stream=True)
    await ask.aread(
        made.run_stream(task="?"),
        lambda piece: getattr(piece, "content", "") if "Chunk" in type(piece).__name__ else "",
    )
