"""The compilation of all kernels before the work begins, with a message if it takes long."""

from __future__ import annotations

import os
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
"""The time to compile all kernels, on one of today's cores."""


def prepare(report: Callable[[str], None]) -> None:
    """Import every module of kernels; if they are not cached, report a line before and after compiling them.

    In plain mode nothing is imported; a line gives the reason unless it was chosen or numba is not installed.
    """
    if not kernel.COMPILED:
        if kernel.PLAIN not in (ABSENT, CHOSEN):
            report(f"the kernels are not compiled: {kernel.PLAIN}")
        return
    from otel_llm.core.compiling.jit import kernel_cache

    cache = kernel_cache()
    if cache.path is None:
        why = "; ".join(cache.refused)
        report(f"compiling the kernels, about {ABOUT_S} s at every start: {why}; {VARIABLE} names another folder")
    elif os.environ.get(VARIABLE) and cache.refused:
        report(f"{VARIABLE} is not used: {cache.refused[0]}")
    if cache.path is not None and not cache.complete:
        report(f"compiling the kernels, once, about {ABOUT_S} s; kept in {cache.path}")
    begun = time.monotonic()
    for module in pkgutil.walk_packages(core.__path__, f"{core.__name__}."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    cache.seal()
    took_s = time.monotonic() - begun
    if cache.broken is not None:
        report(f"compiled the kernels in {took_s:.1f} s, not kept: {cache.broken}")
    elif not cache.complete:
        report(f"compiled the kernels in {took_s:.1f} s")
