"""The mode of this process: kernels compiled by numba, or run as plain Python.

`OTEL_LLM_CORE` unset: compiled if numba can be imported. `plain`: never. `compiled`: an error if it cannot.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import Any, Final

VARIABLE: Final = "OTEL_LLM_CORE"
CHOSEN: Final = f"{VARIABLE}=plain"
ABSENT: Final = "numba is not installed"
REMEDY: Final = "pip install 'otel-llm[collector]'"
_NO_SVML: Final = "NUMBA_DISABLE_INTEL_SVML"


class ModeError(Exception):
    """`OTEL_LLM_CORE` has a value that cannot be used; the message gives the remedy."""


def plain_because() -> str | None:
    """Return why the kernels run as plain Python; None if they are compiled.

    Raises:
        ModeError: the variable has another value, or needs a compiler that this installation lacks.
    """
    chosen = os.environ.get(VARIABLE, "")
    if chosen not in ("", "plain", "compiled"):
        raise ModeError(f"{VARIABLE} is {chosen!r}: it may be plain or compiled, or unset")
    if chosen == "plain":
        return CHOSEN
    reason = _no_compiler()
    if reason is not None and chosen == "compiled":
        raise ModeError(f"{VARIABLE} is 'compiled', but {reason}: {REMEDY}")
    return reason


def _no_compiler() -> str | None:
    """Return why numba cannot be used; None if it can."""
    if find_spec("numba") is None:
        return ABSENT
    if "numba" not in sys.modules:
        # SVML's functions differ from libm's in the last bit. numba reads the variable at import.
        os.environ.setdefault(_NO_SVML, "1")
    try:
        import numba

        from otel_llm.core.compiling import jit  # noqa: F401  its imports from inside numba must exist, too

        config: Any = numba.config
    except Exception as broken:  # noqa: BLE001  versions that do not match, a library that does not load
        return f"numba cannot be imported ({' '.join(str(broken).split())})"
    if config.DISABLE_JIT:
        return "NUMBA_DISABLE_JIT is set"
    if config.USING_SVML:
        return f"numba was imported without {_NO_SVML}=1"
    return None
