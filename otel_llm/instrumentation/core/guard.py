"""The guard that keeps our failures from the host application."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable


class Breakable(Protocol):
    """An object that can stop working without harm to the host."""

    def broken(self, bug: BaseException) -> None:
        """Stop working because of a failure of ours."""


P = ParamSpec("P")
B = TypeVar("B", bound=Breakable)


def inert_on_bug(method: Callable[Concatenate[B, P], None]) -> Callable[Concatenate[B, P], None]:
    """Turn a failure of ours into one warning and an inert recording; it never reaches the host."""

    @functools.wraps(method)
    def guarded(self: B, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as bug:  # noqa: BLE001
            self.broken(bug)

    return guarded
