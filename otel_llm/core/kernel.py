"""The decorator of kernels, which compiles a function with numba or leaves it as it is.

`compiling.mode` decides which; `compiling.kernel_cache` stores the machine code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from otel_llm.core.compiling.mode import plain_because

if TYPE_CHECKING:
    from collections.abc import Callable

Function = TypeVar("Function", bound="Callable[..., Any]")

PLAIN: Final = plain_because()
"""Why kernels run as plain Python; None if they are compiled."""
COMPILED: Final = PLAIN is None


def called_by_kernels(*functions: Callable[..., Any], inline: bool = False) -> None:
    """Make plain functions callable from kernels, each after those that it calls; they stay plain for other callers.

    `inline`: as for `kernel`.
    """
    if COMPILED:
        from otel_llm.core.compiling import jit

        for function in functions:
            jit.register(function, inline=inline)


def kernel(signature: str | None = None, *, inline: bool = False) -> Callable[[Function], Function]:
    """Return a decorator that compiles a function: now if a signature is given, else with its callers.

    A function with a signature is cached on disk, with all that it calls. `inline`: always into its callers, since a
    call with two arrays costs more than a small function.
    """

    def compiled(function: Function) -> Function:
        if not COMPILED:
            return function
        from otel_llm.core.compiling import jit

        made: Function = jit.compiled(function, signature, inline=inline)
        return made

    return compiled
