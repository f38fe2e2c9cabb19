"""The client's wires: the API of a path, the provider of a host."""

from __future__ import annotations

from typing import Final

from otel_llm.instrumentation.parse.cohere import CohereReader
from otel_llm.instrumentation.parse.gemini import GeminiReader
from otel_llm.instrumentation.parse.json_bodies import JsonArray, JsonLines
from otel_llm.instrumentation.parse.ollama import OllamaReader
from otel_llm.instrumentation.parse.sse_chunks import APIS, COMPLETIONS, SSE, Api
from otel_llm.instrumentation.parse.tgi import TgiReader

AZURE: Final = "azure.ai.openai"
_NDJSON: Final = {"application/x-ndjson": JsonLines}

GEMINI: Final = Api(
    "generate_content",
    GeminiReader,
    provider="gcp.gemini",
    asks="path",
    parsers={**SSE, "application/json": JsonArray},  # events only where `alt=sse` asks for them
)
WIRES: Final[tuple[tuple[str, Api], ...]] = (
    *APIS,
    (":streamGenerateContent", GEMINI),
    ("/api/chat", Api("chat", OllamaReader, provider="ollama", asks="default", parsers=_NDJSON)),
    ("/api/generate", Api("text_completion", OllamaReader, provider="ollama", asks="default", parsers=_NDJSON)),
    ("/completion", COMPLETIONS),
    ("/v2/chat", Api("chat", CohereReader, provider="cohere")),
    ("/generate_stream", Api("text_completion", TgiReader, provider="tgi", asks="path")),
)
"""The end of a path, and a client's API there; the first match counts. A server's middleware uses `APIS` only."""

PROVIDERS: Final[tuple[tuple[str, str], ...]] = (
    ("api.openai.com", "openai"),
    (".openai.azure.com", AZURE),
    (".cognitiveservices.azure.com", AZURE),
    (".services.ai.azure.com", "azure.ai.inference"),
    ("api.anthropic.com", "anthropic"),
    ("generativelanguage.googleapis.com", "gcp.gemini"),
    ("aiplatform.googleapis.com", "gcp.vertex_ai"),  # a region may stand before it
    ("api.cohere.com", "cohere"),
    ("api.cohere.ai", "cohere"),
    ("api.deepseek.com", "deepseek"),
    ("api.groq.com", "groq"),
    ("api.mistral.ai", "mistral_ai"),
    ("codestral.mistral.ai", "mistral_ai"),
    ("api.perplexity.ai", "perplexity"),
    ("api.moonshot.ai", "moonshot_ai"),
    ("api.moonshot.cn", "moonshot_ai"),
    ("api.x.ai", "x_ai"),
    (".ml.cloud.ibm.com", "ibm.watsonx.ai"),
)
"""The end of a host's name, and its `gen_ai.provider.name`, where the semantic conventions have one."""
PLACES: Final = (("/openai/deployments/", AZURE), ("/publishers/google/models/", "gcp.vertex_ai"))
"""Parts of a path that only one provider has, whatever gateway is before it."""


def provider_of(default: str, host: str | None, path: str = "") -> str:
    """Return the provider of a path at a host, `default` where neither shows it."""
    name = next((provider for ending, provider in PROVIDERS if (host or "").endswith(ending)), None)
    return name or next((provider for part, provider in PLACES if part in path), default)
