"""The wall between a failure of ours and the host application."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Concatenate, ParamSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_llm.instrumentation.core.recording import Recording

P = ParamSpec("P")


def inert_on_bug(
    method: Callable[Concatenate[Recording, P], None],
) -> Callable[Concatenate[Recording, P], None]:
    """Let a failure of ours end in one warning and a recording that does nothing any more, never in the host."""

    @functools.wraps(method)
    def guarded(self: Recording, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as bug:  # noqa: BLE001
            self.broken(bug)

    return guarded
