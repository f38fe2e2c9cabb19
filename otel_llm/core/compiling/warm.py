"""Have every kernel compiled before the work begins, and say so where that takes its time."""

from __future__ import annotations

import pkgutil
import time
from importlib import import_module
from typing import TYPE_CHECKING, Final

from otel_llm import core
from otel_llm.core import kernel
from otel_llm.core.compiling.kernel_cache import VARIABLE
from otel_llm.core.compiling.mode import ABSENT, CHOSEN

if TYPE_CHECKING:
    from collections.abc import Callable

ABOUT_S: Final = 20
"""What compiling all of them takes, on one of today's cores."""


def prepare(say: Callable[[str], None]) -> None:
    """Import every module of kernels: from the cache in silence; compiled, with a line before and one behind it.

    In plain mode nothing is imported, and a line says why if that was neither chosen nor a matter of what is installed.
    """
    if not kernel.COMPILED:
        if kernel.PLAIN not in (ABSENT, CHOSEN):
            say(f"the kernels are not compiled: {kernel.PLAIN}")
        return
    from otel_llm.core.compiling.jit import kernel_cache

    kept = kernel_cache()
    if kept.path is None:
        why = "; ".join(kept.refused)
        say(f"compiling the kernels, about {ABOUT_S} s at every start: {why}; {VARIABLE} names another folder")
    elif not kept.complete:
        say(f"compiling the kernels, once, about {ABOUT_S} s; kept in {kept.path}")
    begun = time.monotonic()
    for module in pkgutil.walk_packages(core.__path__, f"{core.__name__}."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    kept.seal()
    took_s = time.monotonic() - begun
    if kept.broken is not None:
        say(f"compiled the kernels in {took_s:.1f} s, not kept: {kept.broken}")
    elif not kept.complete:
        say(f"compiled the kernels in {took_s:.1f} s")
