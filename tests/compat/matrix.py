"""The matrix: which environments there are, which cases run in them, and what is known not to be recorded."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from compat.environments import Environment

CASES = Path(__file__).parent / "cases"

ENVIRONMENTS = {
    one.name: one
    for one in (
        Environment(
            "sdks",
            (
                "openai>=3",
                "anthropic>=2",
                "google-genai>=3",
                "ollama",
                "cohere",
                "mistralai",
                "groq",
                "together",
                "huggingface_hub",
                "requests",
                "boto3",
                "aiobotocore",
                "aiohttp",
            ),
        ),
        Environment("openai-1", ("openai>=1.109,<2",)),
        Environment("anthropic-0", ("anthropic>=0.50,<0.51",)),
        # llama-index and crewai hold the OpenAI SDK below 3.
        Environment("openai-2", ("openai>=2,<3", "llama-index-llms-openai", "crewai")),
        Environment("litellm", ("litellm", "dspy", "smolagents[openai]")),
        # The proxy comes in an older version than the rest.
        Environment("litellm-proxy", ("litellm[proxy]",)),
        Environment(
            "frameworks",
            (
                "langchain-openai",
                "langchain-anthropic",
                "langchain-google-genai",
                "langchain-ollama",
                "langchain-groq",
                "langgraph",
                "pydantic-ai-slim[openai,anthropic,google]",
                "openai-agents",
                "haystack-ai",
                "autogen-agentchat",
                "autogen-ext[openai]",
                "agno",
            ),
        ),
        Environment("others", ("instructor", "semantic-kernel")),
        Environment("logfire", ("logfire", "openai>=3", "anthropic>=2")),
    )
}

ALL = ("complete", "left", "cut", "error", "status")
"""How a reply ends: as it should; left by the caller; connection reset; error event; HTTP status 429."""
FEW = ("complete", "left")
"""For frameworks: what happens below them is shown by the cases of the SDKs, and many of them try again."""


@dataclass(frozen=True)
class Case:
    """One script in `cases`, whose public functions are the modes.

    `packages`: the distributions whose versions are told, the subject first.
    `ways`: `instrument` (a line in the code) and `command` (`opentelemetry-instrument`).
    `short`: the modes that are part of the suite.
    `reasons`: why a mode is not recorded (`*`: all of them).
    `outcomes`: a variant to an outcome that is right as well, since the package raises errors of its own.
    `note` is for the table.
    """

    script: str
    environment: str
    packages: tuple[str, ...]
    variants: tuple[str, ...] = ALL
    ways: tuple[str, ...] = ("instrument",)
    short: tuple[str, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)
    outcomes: Mapping[str, str] = field(default_factory=dict)
    note: str = ""

    @property
    def name(self) -> str:
        """Return the case's name: a script may run in several environments."""
        return f"{self.script}@{self.environment}"

    @property
    def path(self) -> Path:
        """Return its script."""
        return CASES / f"{self.script}.py"

    def explains(self, mode: str) -> bool:
        """Return whether it is known why a mode is not recorded as it should be."""
        return mode in self.reasons or "*" in self.reasons

    def modes(self) -> list[str]:
        """Return its modes: the public functions of the script, in order."""
        tree = ast.parse(self.path.read_text(encoding="utf-8"))
        functions = (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
        return [function.name for function in functions if not function.name.startswith("_")]


BOTH = ("instrument", "command")

NO_PATH = "the client posts to the address of a model and not to `/generate_stream`: its path names no API"

MATRIX = (
    Case(
        "openai_sdk", "sdks", ("openai",), ways=BOTH, short=("sync", "asynchronous", "helper", "responses", "raw_lines")
    ),
    Case("openai_sdk", "openai-2", ("openai",), ways=BOTH, short=("sync", "asynchronous")),
    Case("openai_sdk", "openai-1", ("openai",), ways=BOTH),
    Case("anthropic_sdk", "sdks", ("anthropic",), ways=BOTH, short=("sync", "helper_async")),
    Case("anthropic_sdk", "anthropic-0", ("anthropic",), ways=BOTH),
    Case("google_genai_sdk", "sdks", ("google-genai",), short=("sync", "asynchronous_aiohttp")),
    Case("ollama_sdk", "sdks", ("ollama",), short=("sync", "asynchronous")),
    Case("cohere_sdk", "sdks", ("cohere",)),
    Case("mistral_sdk", "sdks", ("mistralai",), short=("sync",)),
    Case("groq_sdk", "sdks", ("groq",)),
    Case("together_sdk", "sdks", ("together",)),
    Case(
        "huggingface_sdk",
        "sdks",
        ("huggingface_hub",),
        short=("chat", "chat_async"),
        reasons=dict.fromkeys(("text_generation", "text_generation_async"), NO_PATH),
    ),
    Case("requests_raw", "sdks", ("requests",), short=("lines", "gemini")),
    Case("boto3_sdk", "sdks", ("boto3",), ways=BOTH),
    Case("aiobotocore_sdk", "sdks", ("aiobotocore",)),
    Case("aiohttp_raw", "sdks", ("aiohttp",)),
    Case("httpx_raw", "sdks", ("httpx",)),
    Case(
        "litellm_sdk",
        "litellm",
        ("litellm",),
        ways=BOTH,
        outcomes={"cut": "error"},
        note="a connection that breaks may be an `error`: LiteLLM raises one of its own",
    ),
    Case("litellm_proxy", "litellm-proxy", ("litellm",), variants=("complete",), note="the proxy's own calls"),
    Case("dspy_program", "litellm", ("dspy", "litellm"), variants=("complete",)),
    Case("smolagents_model", "litellm", ("smolagents",), variants=FEW),
    Case(
        "langchain_models",
        "frameworks",
        ("langchain-core",),
        variants=FEW,
        ways=BOTH,
        short=("openai", "anthropic_async"),
    ),
    Case("langgraph_graph", "frameworks", ("langgraph",), variants=FEW, short=("asynchronous",)),
    Case("pydantic_ai_agent", "frameworks", ("pydantic-ai-slim",), variants=FEW, short=("openai", "google")),
    Case("openai_agents_run", "frameworks", ("openai-agents",), variants=FEW),
    Case("haystack_generator", "frameworks", ("haystack-ai",), variants=("complete",)),
    Case("autogen_agent", "frameworks", ("autogen-agentchat",), variants=FEW),
    Case("agno_agent", "frameworks", ("agno",), variants=FEW),
    Case("llama_index_llm", "openai-2", ("llama-index-llms-openai",), variants=FEW),
    Case("crewai_llm", "openai-2", ("crewai",), variants=("complete",)),
    Case("instructor_partial", "others", ("instructor",), variants=FEW),
    Case("semantic_kernel_chat", "others", ("semantic-kernel",), variants=FEW),
    Case("logfire_beside", "logfire", ("logfire",), note="both SDKs under its instrumentations, which suppress others"),
)
