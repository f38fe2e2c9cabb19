"""LangChain's chat models of five providers, and the ways to stream one."""

from langchain_anthropic import ChatAnthropic
from langchain_google_genai import ChatGoogleGenerativeAI
from langchain_groq import ChatGroq
from langchain_ollama import ChatOllama
from langchain_openai import ChatOpenAI


def _openai(ask, **more):
    return ChatOpenAI(model=ask.model, base_url=ask.v1, api_key="none", max_retries=0, **more)


def _anthropic(ask):
    return ChatAnthropic(model=ask.model, base_url=ask.url, api_key="none", max_retries=0)


def _google(ask):
    return ChatGoogleGenerativeAI(model=ask.model, base_url=ask.url, api_key="none", max_retries=1, vertexai=False)


def _said(chunk):
    return chunk.text if isinstance(chunk.text, str) else chunk.text()


def openai(ask):
    ask.read(_openai(ask).stream("?"), _said)


async def openai_async(ask):
    await ask.aread(_openai(ask).astream("?"), _said)


async def openai_events(ask):
    events = _openai(ask).astream_events("?", version="v2")
    await ask.aread(events, lambda event: event["data"]["chunk"].text if event["event"].endswith("stream") else "")


def openai_responses(ask):
    ask.read(_openai(ask, use_responses_api=True).stream("?"), _said)


def anthropic(ask):
    ask.read(_anthropic(ask).stream("?"), _said)


async def anthropic_async(ask):
    await ask.aread(_anthropic(ask).astream("?"), _said)


def google(ask):
    ask.read(_google(ask).stream("?"), _said)


async def google_async(ask):
    await ask.aread(_google(ask).astream("?"), _said)


def ollama(ask):
    ask.read(ChatOllama(model=ask.model, base_url=ask.url).stream("?"), _said)


async def ollama_async(ask):
    await ask.aread(ChatOllama(model=ask.model, base_url=ask.url).astream("?"), _said)


def groq(ask):
    model = ChatGroq(model=ask.model, base_url=ask.url + "/groq", api_key="none", max_retries=0)
    ask.read(model.stream("?"), _said)
