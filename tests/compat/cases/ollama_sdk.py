"""ollama: chat and generate, sync and async."""

import ollama

QUESTION = [{"role": "user", "content": "Tell me something."}]


def _chat(part):
    return part.message.content


def _generated(part):
    return part.response


def sync(ask):
    ask.read(ollama.Client(host=ask.url).chat(model=ask.model, messages=QUESTION, stream=True), _chat)


async def asynchronous(ask):
    client = ollama.AsyncClient(host=ask.url)
    await ask.aread(await client.chat(model=ask.model, messages=QUESTION, stream=True), _chat)


def generate(ask):
    ask.read(ollama.Client(host=ask.url).generate(model=ask.model, prompt="?", stream=True), _generated)


async def generate_async(ask):
    client = ollama.AsyncClient(host=ask.url)
    await ask.aread(await client.generate(model=ask.model, prompt="?", stream=True), _generated)
