"""Replacing functions of a library, put back only where ours still stand; classes that look like a library's."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_ABSENT: Final = object()


def disguised(ours: Any, theirs: Any, *, only_where_theirs: Iterable[str] = ()) -> Any:
    """Return a subclass of ours that names itself as theirs, less the methods of these names that theirs has not."""
    for name in only_where_theirs:
        if not hasattr(theirs, name):
            delattr(ours, name)
    ours.__name__, ours.__qualname__, ours.__module__ = theirs.__name__, theirs.__qualname__, theirs.__module__
    return ours


class Patches:
    """The replacements of one instrumentation; all undone together."""

    def __init__(self) -> None:
        self._made: list[tuple[type, str, object, object]] = []

    def replace(self, owner: type, name: str, replacement: Callable[[Any], Callable[..., Any]]) -> None:
        """Put `replacement(original)` in the place of a class's method, looking like the original.

        Raises AttributeError where there is no such method, and takes back what was replaced before: half of an
        instrumentation is none.
        """
        own = owner.__dict__.get(name, _ABSENT)
        try:
            original = getattr(owner, name)
        except AttributeError:
            self.undo()
            raise
        ours = functools.wraps(original)(replacement(original))
        setattr(owner, name, ours)
        self._made.append((owner, name, own, ours))

    def undo(self) -> None:
        """Restore what ours still stands for; under somebody else's replacement ours stays, and passes through."""
        for owner, name, own, ours in reversed(self._made):
            if owner.__dict__.get(name) is not ours:
                continue
            if own is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, own)
        self._made.clear()
