"""The wall between a failure of ours and the host application."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable


class Breakable(Protocol):
    """What can stop working without harm to the host."""

    def broken(self, bug: BaseException) -> None:
        """Give up because of a failure of ours."""


P = ParamSpec("P")
B = TypeVar("B", bound=Breakable)


def inert_on_bug(method: Callable[Concatenate[B, P], None]) -> Callable[Concatenate[B, P], None]:
    """Let a failure of ours end in one warning and a recording that does nothing any more, never in the host."""

    @functools.wraps(method)
    def guarded(self: B, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as bug:  # noqa: BLE001
            self.broken(bug)

    return guarded
