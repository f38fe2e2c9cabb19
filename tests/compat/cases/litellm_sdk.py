"""LiteLLM: completions of several providers, sync and async."""

import litellm

QUESTION = [{"role": "user", "content": "Tell me something."}]
litellm.suppress_debug_info = True


def _said(chunk):
    return "".join(choice.delta.content or "" for choice in chunk.choices)


def _asked(ask, provider, path=""):
    return {
        "model": f"{provider}/{ask.model}",
        "messages": QUESTION,
        "api_base": ask.url + path,
        "api_key": "none",
        "stream": True,
        "max_retries": 0,
    }


def openai(ask):
    ask.read(litellm.completion(**_asked(ask, "openai", "/v1")), _said)


async def openai_async(ask):
    await ask.aread(await litellm.acompletion(**_asked(ask, "openai", "/v1")), _said)


def anthropic(ask):
    ask.read(litellm.completion(**_asked(ask, "anthropic")), _said)


async def gemini_async(ask):
    await ask.aread(await litellm.acompletion(**_asked(ask, "gemini")), _said)


def ollama(ask):
    ask.read(litellm.completion(**_asked(ask, "ollama_chat")), _said)


async def responses_async(ask):
    # LiteLLM streams this API for models that it knows, and makes up a stream for others.
    stream = await litellm.aresponses(
        model="openai/gpt-4o",
        input="?",
        api_base=ask.v1,
        api_key="none",
        stream=True,
        extra_headers={"x-wire-reply": ask.model},
    )
    await ask.aread(stream, lambda event: getattr(event, "delta", ""))
