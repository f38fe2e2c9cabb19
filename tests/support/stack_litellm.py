"""LiteLLM in the matrix, over a provider that it calls with the OpenAI SDK."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any, ClassVar

from support.matrix import MODEL
from support.stack_sse import RawChat


class LiteLLM(RawChat):
    """`litellm.completion(stream=True)`."""

    name = "litellm"
    # `iter(stream)` is the stream: that a loop over it was left is not seen until the stream is closed or dropped.
    # A connection that breaks is the same error of litellm's to its caller as a server that fails.
    outcomes: ClassVar[dict[str, str]] = {"gc": "abandoned", "caller, no with": "abandoned", "cut": "error"}

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
