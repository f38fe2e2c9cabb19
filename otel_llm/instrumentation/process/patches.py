"""Replace functions of a library, and restore them only where ours are still in place; disguised subclasses."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_ABSENT: Final = object()


def disguised(ours: Any, theirs: Any, *, only_where_theirs: Iterable[str] = ()) -> Any:
    """Return a subclass of ours with their name, less the methods of `only_where_theirs` that they do not have."""
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
        """Replace a class's method by `replacement(original)`, which looks like the original.

        Raises AttributeError where there is no such method, and undoes the replacements before it: half of an
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
        """Restore the originals where ours are in place; beneath another's, ours stays and passes through."""
        for owner, name, own, ours in reversed(self._made):
            if owner.__dict__.get(name) is not ours:
                continue
            if own is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, own)
        self._made.clear()
