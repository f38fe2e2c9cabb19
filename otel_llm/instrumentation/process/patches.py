"""Replace functions of a library by hooks of the same shape, and restore them only if ours are still in place;
disguised subclasses."""

from __future__ import annotations

import functools
import inspect
import sys
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
        self._made: list[tuple[Any, str, object, object]] = []
        self._hooks: list[tuple[object, Callable[..., Any]]] = []

    def replace(self, owner: Any, name: str, replacement: Callable[[Any], Callable[..., Any]]) -> None:
        """Replace a function of a class or a module by `replacement(original)`, in the shape of the original.

        A function that has two names stays one function. Raises AttributeError if there is no such function, and
        undoes the replacements before it: half of an instrumentation is none.
        """
        try:
            found = inspect.getattr_static(owner, name)
            original = found.__func__ if isinstance(found, classmethod) else getattr(owner, name)
        except AttributeError:
            self.undo()
            raise
        if any(hook is original for _, hook in self._hooks):
            return
        hook = next((hook for theirs, hook in self._hooks if theirs is original), None)
        if hook is None:
            hook = functools.wraps(original)(_of_its_kind(replacement(original), original))
            self._hooks.append((original, hook))
        self._set(owner, name, type(found)(hook) if isinstance(found, classmethod | staticmethod) else hook)
        home, own_name = (
            sys.modules.get(getattr(original, "__module__", None) or ""),
            getattr(original, "__name__", name),
        )
        if inspect.ismodule(owner) and getattr(home, own_name, None) is original:  # pickle looks there
            self._set(home, own_name, hook)

    def _set(self, owner: Any, name: str, ours: object) -> None:
        self._made.append((owner, name, owner.__dict__.get(name, _ABSENT), ours))
        setattr(owner, name, ours)

    def undo(self) -> None:
        """Restore the originals if ours are in place; beneath another's, ours stays and passes through."""
        for owner, name, own, ours in reversed(self._made):
            if owner.__dict__.get(name) is not ours:
                continue
            if own is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, own)
        self._made.clear()
        self._hooks.clear()


def _of_its_kind(hook: Callable[..., Any], original: Any) -> Callable[..., Any]:
    """Return the hook as a coroutine function exactly if the original is one, whatever both return."""
    if inspect.iscoroutinefunction(hook) == inspect.iscoroutinefunction(original):
        return hook

    def called(*args: Any, **kwargs: Any) -> Any:
        return hook(*args, **kwargs)

    async def awaited(*args: Any, **kwargs: Any) -> Any:
        return await hook(*args, **kwargs)

    return awaited if inspect.iscoroutinefunction(original) else called
