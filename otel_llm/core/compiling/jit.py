"""All that we ask of numba; imported only where kernels are compiled."""

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

from otel_llm.core.compiling.kernel_cache import KernelCache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_OPTIONS: Final[dict[str, Any]] = {"nogil": True, "error_model": "numpy"}
if hasattr(DefaultOptions, "_nrt"):
    # Kernels make no arrays, so none need be counted: a look takes a tenth of the time. numba does not document it.
    _OPTIONS["_nrt"] = False
_SETTINGS: Final = ("BOUNDSCHECK", "OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "DEBUGINFO_DEFAULT")
"""numba's own, from the environment, that change the code and are not in the index of its cache."""


def compiled(function: Callable[..., Any], signature: str | None, *, inline: bool = False) -> Any:
    """Return a function compiled for a signature, from the cache where it is there; without one, for its callers.

    A cache that cannot be read or written never stops it: it is given up, and the function is compiled.
    """
    if signature is None:
        return numba.njit(forceinline=inline, **_OPTIONS)(function)
    kept = kernel_cache()
    if kept.path is not None:
        try:
            with kept.compiling():
                with _our_folder():
                    made = numba.njit(cache=True, **_OPTIONS)(function)
                return _for(signature, made)
        except NumbaError:
            raise  # the function is wrong
        except Exception as broken:  # noqa: BLE001  a full disk, a file cut short by a crash: unpickling raises anything
            kept.give_up(f"{type(broken).__name__}: {broken}")
    return _for(signature, numba.njit(**_OPTIONS)(function))


def _for(signature: str, made: Any) -> Any:
    made.compile(signature)
    made.disable_compile()  # arguments of other types are an error, not another compilation
    return made


@cache
def kernel_cache() -> KernelCache:
    """Return where this process keeps its kernels."""
    return KernelCache([*_versions(), *_machine()])


def _versions() -> Iterator[str]:
    yield f"Python {platform.python_version()}{sys.abiflags}"
    for package in (numba, llvmlite, np):
        yield f"{package.__name__} {package.__version__}"


def _machine() -> Iterator[str]:
    """Yield for which processor numba compiles; `NUMBA_CPU_NAME=generic` makes that any one of its architecture."""
    config: Any = numba.config
    yield llvmlite.binding.get_process_triple()
    yield config.CPU_NAME or llvmlite.binding.get_host_cpu_name()
    yield config.CPU_FEATURES if config.CPU_FEATURES is not None else get_host_cpu_features()  # type: ignore[no-untyped-call]
    for name in _SETTINGS:
        yield f"{name} {getattr(config, name, None)!r}"


class Locator(InTreeCacheLocator):
    """Tell numba to keep a function in our folder, and that our folder's name says how fresh it is.

    numba's own locators ask for a writable folder even to read from it, and look at the function's own file only: a
    constant that changes elsewhere would leave old machine code running.
    """

    def ensure_cache_path(self) -> None:
        """Do nothing: the folder is there, and to read from it one need not write to it."""

    def get_cache_path(self) -> str:
        """Return the folder."""
        return str(kernel_cache().path)

    def get_source_stamp(self) -> str:
        """Return what must be equal for a kept function to be used: not the time of its file."""
        return kernel_cache().name


@contextlib.contextmanager
def _our_folder() -> Iterator[None]:
    """Make numba use our Locator in the block: it chooses one when it decorates a function, and keeps it."""
    config: Any = numba.config
    before = config.CACHE_LOCATOR_CLASSES
    config.CACHE_LOCATOR_CLASSES = f"{__name__}.{Locator.__name__}"
    try:
        yield
    finally:
        config.CACHE_LOCATOR_CLASSES = before
