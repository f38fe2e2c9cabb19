"""The wires that a client may speak: what is at a path, who serves a host."""

from __future__ import annotations

from typing import Final

from otel_llm.instrumentation.parse.cohere import CohereReader
from otel_llm.instrumentation.parse.gemini import GeminiReader
from otel_llm.instrumentation.parse.json_bodies import JsonArray, JsonLines
from otel_llm.instrumentation.parse.ollama import OllamaReader
from otel_llm.instrumentation.parse.sse_chunks import APIS, SSE, Api
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
    ("/v2/chat", Api("chat", CohereReader, provider="cohere")),
    ("/generate_stream", Api("text_completion", TgiReader, provider="tgi", asks="path")),
)
"""How a path ends, to what a client gets there; the first that fits. A server's middleware knows `APIS` alone."""

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
    ("api.x.ai", "x_ai"),
    (".ml.cloud.ibm.com", "ibm.watsonx.ai"),
)
"""How a host's name ends, to `gen_ai.provider.name` where the semantic conventions have a name for it."""
PLACES: Final = (("/openai/deployments/", AZURE), ("/publishers/google/models/", "gcp.vertex_ai"))
"""What stands in a path at one provider alone, whatever gateway is before it."""


def provider_of(default: str, host: str | None, path: str = "") -> str:
    """Return who serves a path at a host, `default` where neither says."""
    name = next((provider for ending, provider in PROVIDERS if (host or "").endswith(ending)), None)
    return name or next((provider for part, provider in PLACES if part in path), default)
