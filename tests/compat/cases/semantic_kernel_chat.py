"""Semantic Kernel: a chat service's stream."""

from openai import AsyncOpenAI
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion, OpenAIChatPromptExecutionSettings
from semantic_kernel.contents import ChatHistory


async def asynchronous(ask):
    client = AsyncOpenAI(base_url=ask.v1, api_key="none", max_retries=0)
    service = OpenAIChatCompletion(ai_model_id=ask.model, async_client=client)
    history = ChatHistory()
    history.add_user_message("Tell me something.")
    stream = service.get_streaming_chat_message_content(history, OpenAIChatPromptExecutionSettings())
    await ask.aread(stream, lambda piece: piece.content)
