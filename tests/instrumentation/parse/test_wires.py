"""What a request says by its path, its body and its host: the wire, whether it wants a stream, model, provider."""

from __future__ import annotations

import json
from typing import Any

import pytest

from otel_llm.instrumentation.parse.sse_chunks import api_of
from otel_llm.instrumentation.parse.wires import WIRES, provider_of
from otel_llm.instrumentation.request.wishes import Wishes
from otel_llm.instrumentation.stacks.client_request import UNSEEN, StreamRequest, stream_request

GEMINI = "/v1beta/models/gemini-3:streamGenerateContent"
VERTEX = "/v1/projects/p/locations/l/publishers/google/models/gemini-3:streamGenerateContent"
AZURE = "/openai/deployments/mine/chat/completions"
MANY: dict[str, Any] = {"generationConfig": {"candidateCount": 3}}


@pytest.mark.parametrize(
    ("path", "operation", "provider"),
    [
        ("/v1/chat/completions", "chat", "openai"),
        ("/v1/completions/", "text_completion", "openai"),
        ("/v1/responses", "chat", "openai"),
        ("/v1/messages", "chat", "anthropic"),
        (GEMINI, "generate_content", "gcp.gemini"),
        ("/api/chat", "chat", "ollama"),
        ("/ollama/api/generate", "text_completion", "ollama"),
        ("/v2/chat", "chat", "cohere"),
        ("/generate_stream", "text_completion", "tgi"),
    ],
)
def test_a_path_tells_the_wire(path: str, operation: str, provider: str) -> None:
    api = api_of(path, WIRES)
    assert api is not None
    assert (api.operation, api.provider) == (operation, provider)


@pytest.mark.parametrize(
    "path", ["/", "/v1/embeddings", "/v1beta/models/m:generateContent", "/v1/chat", "/generate", "/api/chats"]
)
def test_other_paths_are_no_wire(path: str) -> None:
    assert api_of(path, WIRES) is None


@pytest.mark.parametrize("path", [GEMINI, "/api/chat", "/v2/chat", "/generate_stream"])
def test_a_server_s_middleware_knows_none_of_the_new_ones(path: str) -> None:
    assert api_of(path) is None


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        (GEMINI, {}, StreamRequest(stream=True, model="gemini-3")),
        (GEMINI, MANY, StreamRequest(stream=True, model="gemini-3", wishes=Wishes(3))),
        (GEMINI, object(), StreamRequest(stream=True, model="gemini-3")),
        (VERTEX, {"stream": False}, StreamRequest(stream=True, model="gemini-3")),
        (AZURE, {"stream": True}, StreamRequest(stream=True, model="mine")),
        (AZURE, {"stream": True, "model": "named"}, StreamRequest(stream=True, model="named")),
        (AZURE, {}, None),
        (AZURE, object(), UNSEEN),
        ("/api/chat", {"model": "m"}, StreamRequest(stream=True, model="m")),
        ("/api/chat", {"model": "m", "stream": True}, StreamRequest(stream=True, model="m")),
        ("/api/chat", {"model": "m", "stream": False}, None),
        ("/api/generate", {"prompt": "?"}, None),
        ("/api/generate", object(), UNSEEN),
        ("/v2/chat", {"model": "m"}, None),
        ("/v2/chat", {"model": "m", "stream": True}, StreamRequest(stream=True, model="m")),
        ("/generate_stream", {"inputs": "?"}, StreamRequest(stream=True)),
    ],
)
def test_a_request_tells_whether_it_asks_for_a_stream(path: str, body: object, expected: StreamRequest | None) -> None:
    api = api_of(path, WIRES)
    assert api is not None
    assert stream_request(api, path, body) == expected
    if isinstance(body, dict):
        assert stream_request(api, path, json.dumps(body).encode()) == expected


@pytest.mark.parametrize(
    ("host", "path", "provider"),
    [
        ("api.openai.com", "/v1/responses", "openai"),
        ("mine.openai.azure.com", "/openai/v1/responses", "azure.ai.openai"),
        ("mine.cognitiveservices.azure.com", AZURE, "azure.ai.openai"),
        ("gateway.example", AZURE, "azure.ai.openai"),
        ("mine.services.ai.azure.com", "/models/chat/completions", "azure.ai.inference"),
        ("generativelanguage.googleapis.com", "/v1beta/openai/chat/completions", "gcp.gemini"),
        ("us-central1-aiplatform.googleapis.com", VERTEX, "gcp.vertex_ai"),
        ("gateway.example", VERTEX, "gcp.vertex_ai"),
        ("api.groq.com", "/openai/v1/chat/completions", "groq"),
        ("api.mistral.ai", "/v1/chat/completions", "mistral_ai"),
        ("api.cohere.com", "/v2/chat", "cohere"),
        ("api.deepseek.com", "/chat/completions", "deepseek"),
        ("api.x.ai", "/v1/chat/completions", "x_ai"),
        ("api.moonshot.ai", "/v1/chat/completions", "moonshot_ai"),
        ("api.perplexity.ai", "/chat/completions", "perplexity"),
        ("router.huggingface.co", "/v1/chat/completions", "default"),
        (None, "/v1/chat/completions", "default"),
    ],
)
def test_a_host_tells_who_serves(host: str | None, path: str, provider: str) -> None:
    assert provider_of("default", host, path) == provider
