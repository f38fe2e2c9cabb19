"""huggingface_hub's InferenceClient: chat, and text generation of TGI; sync and async."""

from huggingface_hub import AsyncInferenceClient, InferenceClient

QUESTION = [{"role": "user", "content": "Tell me something."}]


def _said(chunk):
    return "".join(choice.delta.content or "" for choice in chunk.choices)


def chat(ask):
    client = InferenceClient(base_url=ask.url, api_key="none")
    ask.read(client.chat_completion(QUESTION, model=ask.model, stream=True), _said)


async def chat_async(ask):
    async with AsyncInferenceClient(base_url=ask.url, api_key="none") as client:
        await ask.aread(await client.chat_completion(QUESTION, model=ask.model, stream=True), _said)


def text_generation(ask):
    client = InferenceClient(model=f"{ask.url}/models/{ask.model}", token="none")
    ask.read(client.text_generation("?", stream=True))


async def text_generation_async(ask):
    async with AsyncInferenceClient(model=f"{ask.url}/models/{ask.model}", token="none") as client:
        await ask.aread(await client.text_generation("?", stream=True))
