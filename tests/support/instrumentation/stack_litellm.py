"""LiteLLM in the matrix, over a provider that it calls with the OpenAI SDK."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from importlib.metadata import version
from typing import Any, ClassVar

from support.instrumentation.matrix import MODEL
from support.instrumentation.stack_sse import RawChat

UNCLOSED = frozenset(
    {"close, sync", "break, sync", "cancel, sync", "with, sync", "with, async", "caller, sync", "caller, async"}
)
"""What a stream of litellm before 1.108 cannot be done to: it is no context manager, and a sync one has no `close`."""


class LiteLLM(RawChat):
    """`litellm.completion(stream=True)`."""

    name = "litellm"
    # `iter(stream)` is the stream: that a loop over it was left is not seen until the stream is closed or dropped.
    # A connection that breaks is the same error of litellm's to its caller as a server that fails.
    outcomes: ClassVar[dict[str, str]] = {"gc": "abandoned", "caller, no with": "abandoned", "cut": "error"}

    def why_not(self, case: str, mode: str) -> str | None:
        """Return why there is no such case in the litellm that is installed, None where there is."""
        from litellm import CustomStreamWrapper

        if hasattr(CustomStreamWrapper, "close") or f"{case}, {mode}" not in UNCLOSED:
            return None
        return f"this litellm has no close: {version('litellm')}"

    def ask(self, url: str) -> dict[str, Any]:
        return {
            "model": f"openai/{MODEL}",
            "messages": [{"role": "user", "content": "?"}],
            "stream": True,
            "api_base": url,
            "api_key": "none",
            "num_retries": 0,
            "max_retries": 0,
        }

    @contextlib.contextmanager
    def client(self, url: str) -> Iterator[Any]:
        yield url

    def open(self, client: Any) -> Any:
        import litellm

        return litellm.completion(**self.ask(client))

    @contextlib.asynccontextmanager
    async def aclient(self, url: str) -> AsyncIterator[Any]:
        yield url

    async def aopen(self, client: Any) -> Any:
        import litellm

        return await litellm.acompletion(**self.ask(client))

    async def aclose(self, stream: Any) -> None:
        await stream.aclose()

    def pulls(self, stream: Any) -> Iterator[Any]:
        return iter(stream)

    def apulls(self, stream: Any) -> AsyncIterator[Any]:
        return aiter(stream)

    def look(self, item: Any) -> str:
        return str(item.model_dump_json(exclude={"created"}))

    def closed(self, stream: Any) -> object:
        return getattr(stream, "_closed", None)
