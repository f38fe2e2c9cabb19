"""The use of numba; imported only if kernels are compiled."""

from __future__ import annotations

import contextlib
import platform
import sys
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import llvmlite
import llvmlite.binding
import numba
import numpy as np
from numba.core.caching import InTreeCacheLocator
from numba.core.codegen import get_host_cpu_features
from numba.core.errors import NumbaError
from numba.core.options import DefaultOptions
from numba.extending import register_jitable

from otel_llm.core.compiling.kernel_cache import KernelCache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_OPTIONS: Final[dict[str, Any]] = {"nogil": True, "error_model": "numpy"}
if hasattr(DefaultOptions, "_nrt"):
    # Kernels create no arrays, so no reference counts: the prefilter takes a tenth of the time. It is undocumented.
    _OPTIONS["_nrt"] = False
_SETTINGS: Final = ("BOUNDSCHECK", "OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "DEBUGINFO_DEFAULT")
"""Settings of numba, from the environment, that change the code and are not in the index of its cache."""


def compiled(function: Callable[..., Any], signature: str | None, *, inline: bool = False) -> Any:
    """Return a function compiled for a signature, from the cache if possible; without a signature, for its callers.

    A cache that cannot be read or written is given up, and the function is compiled.
    """
    if signature is None:
        return numba.njit(forceinline=inline, **_OPTIONS)(function)
    folder = kernel_cache()
    if folder.path is not None:
        try:
            with folder.compiling():
                with _our_folder():
                    made = numba.njit(cache=True, **_OPTIONS)(function)
                return _for(signature, made)
        except NumbaError:
            raise  # an error in the function
        except Exception as broken:  # noqa: BLE001  a full disk, a truncated file: unpickling raises any error
            folder.give_up(f"{type(broken).__name__}: {broken}")
    return _for(signature, numba.njit(**_OPTIONS)(function))


def register(function: Callable[..., Any], *, inline: bool) -> None:
    """Make a plain function callable from compiled ones."""
    register_jitable(forceinline=inline, **_OPTIONS)(function)


def _for(signature: str, made: Any) -> Any:
    made.compile(signature)
    made.disable_compile()  # arguments of other types are an error
    return made


@cache
def kernel_cache() -> KernelCache:
    """Return the kernel cache of this process."""
    return KernelCache([*_versions(), *_machine()])


def _versions() -> Iterator[str]:
    yield f"Python {platform.python_version()}{sys.abiflags}"
    for package in (numba, llvmlite, np):
        yield f"{package.__name__} {package.__version__}"


def _machine() -> Iterator[str]:
    """Yield the processor that numba compiles for; with `NUMBA_CPU_NAME=generic`, any one of its architecture."""
    config: Any = numba.config
    yield llvmlite.binding.get_process_triple()
    yield config.CPU_NAME or llvmlite.binding.get_host_cpu_name()
    yield config.CPU_FEATURES if config.CPU_FEATURES is not None else get_host_cpu_features()  # type: ignore[no-untyped-call]
    for name in _SETTINGS:
        yield f"{name} {getattr(config, name, None)!r}"


class Locator(InTreeCacheLocator):
    """A locator that makes numba use our folder, whose name identifies the version of a function.

    numba's own locators need a writable folder even to read from it, and check the function's own file only: after a
    change of a constant elsewhere, old machine code would run.
    """

    def ensure_cache_path(self) -> None:
        """Do nothing: the folder exists, and may be read-only."""

    def get_cache_path(self) -> str:
        """Return the folder."""
        return str(kernel_cache().path)

    def get_source_stamp(self) -> str:
        """Return the version of a function: the folder's name, not the time of its file."""
        return kernel_cache().name


@contextlib.contextmanager
def _our_folder() -> Iterator[None]:
    """Make numba use our Locator in the block: numba selects one when it decorates a function."""
    config: Any = numba.config
    before = config.CACHE_LOCATOR_CLASSES
    config.CACHE_LOCATOR_CLASSES = f"{__name__}.{Locator.__name__}"
    try:
        yield
    finally:
        config.CACHE_LOCATOR_CLASSES = before
