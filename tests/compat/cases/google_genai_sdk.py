"""google-genai: Gemini and Vertex; sync, async, a chat, and async over aiohttp."""

from google import genai
from google.genai import types


def _client(ask, **more):
    return genai.Client(api_key="none", http_options=types.HttpOptions(base_url=ask.url, **more))


def _said(chunk):
    return chunk.text


def sync(ask):
    client = _client(ask)
    ask.read(client.models.generate_content_stream(model=ask.model, contents="?"), _said)


async def asynchronous(ask):
    client = _client(ask, async_client_args={"transport": _httpx().AsyncHTTPTransport()})
    await ask.aread(await client.aio.models.generate_content_stream(model=ask.model, contents="?"), _said)


async def asynchronous_aiohttp(ask):
    client = _client(ask)
    await ask.aread(await client.aio.models.generate_content_stream(model=ask.model, contents="?"), _said)


def chat(ask):
    client = _client(ask)  # it closes what it opened when it is collected
    ask.read(client.chats.create(model=ask.model).send_message_stream("?"), _said)


def vertex(ask):
    client = genai.Client(
        vertexai=True,
        project="p",
        location="us-central1",
        credentials=_credentials(),
        http_options=types.HttpOptions(base_url=ask.url),
    )
    ask.read(client.models.generate_content_stream(model=ask.model, contents="?"), _said)


def _httpx():
    from google.genai import _api_client

    return _api_client.httpx


def _credentials():
    from google.oauth2.credentials import Credentials

    return Credentials(token="none")
