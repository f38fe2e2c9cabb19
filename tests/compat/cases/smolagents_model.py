"""smolagents: a model's stream, over the OpenAI SDK and over LiteLLM."""

from smolagents import LiteLLMModel, OpenAIModel
from smolagents.models import ChatMessage

QUESTION = [ChatMessage(role="user", content=[{"type": "text", "text": "?"}])]


def openai(ask):
    model = OpenAIModel(model_id=ask.model, api_base=ask.v1, api_key="none")
    ask.read(model.generate_stream(QUESTION), lambda delta: delta.content)


def litellm(ask):
    model = LiteLLMModel(model_id=f"openai/{ask.model}", api_base=ask.v1, api_key="none")
    ask.read(model.generate_stream(QUESTION), lambda delta: delta.content)
