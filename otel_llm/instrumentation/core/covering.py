"""Whether an instrumentation further up records a request already, so that nobody below records it again."""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

covered: Final[ContextVar[bool]] = ContextVar("otel_llm_covered", default=False)
"""Whether the request is recorded already; set and reset in one frame around its call."""


@contextlib.contextmanager
def covering() -> Iterator[None]:
    """Let nobody further down record the request that is made inside."""
    token = covered.set(True)
    try:
        yield
    finally:
        # A coroutine that is thrown away unfinished is closed in whatever context the garbage collector runs.
        with contextlib.suppress(ValueError):
            covered.reset(token)
