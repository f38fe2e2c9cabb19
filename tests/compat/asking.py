"""What a case is given: where to call, for which model, and how much of the reply to read. Standard library only."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Ask:
    """One call that a case is to make.

    `url`: the server, without a path. `model`: the name that states the reply. `stop_after`: how many non-empty pieces
    of text to read before the caller leaves the stream; None reads all. `got` is what the caller got.
    """

    url: str
    model: str
    stop_after: int | None = None
    got: list[str] = field(default_factory=list)

    @property
    def v1(self) -> str:
        """Return the base URL of an OpenAI client."""
        return self.url + "/v1"

    def read(self, stream: Iterable[Any], text: Callable[[Any], object] = str) -> None:
        """Read a stream; `text` gives what a chunk says. A caller who leaves breaks, and closes what can be closed."""
        for chunk in stream:
            if self._enough(text(chunk)):
                break
        else:
            return
        close = getattr(stream, "close", None)
        if close is not None:
            close()

    async def aread(self, stream: AsyncIterable[Any], text: Callable[[Any], object] = str) -> None:
        """Read an asynchronous stream, as `read`."""
        async for chunk in stream:
            if self._enough(text(chunk)):
                break
        else:
            return
        close = getattr(stream, "aclose", None) or getattr(stream, "close", None)
        if close is not None:
            await close()

    def _enough(self, said: object) -> bool:
        if said:
            self.got.append(str(said))
        return self.stop_after is not None and len(self.got) >= self.stop_after
