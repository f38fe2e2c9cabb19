"""Whether this process compiles its kernels with numba or runs them as plain Python, and why.

`OTEL_LLM_CORE` unset: compiled where numba can be imported. `plain`: never. `compiled`: an error where it cannot be.
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
    """Say that `OTEL_LLM_CORE` cannot be followed, and what to do about it."""


def plain_because() -> str | None:
    """Return why the kernels run as plain Python; None where they are compiled.

    Raises:
        ModeError: the variable has another value, or asks for what this installation cannot do.
    """
    asked = os.environ.get(VARIABLE, "")
    if asked not in ("", "plain", "compiled"):
        raise ModeError(f"{VARIABLE} is {asked!r}: it may be plain or compiled, or unset")
    if asked == "plain":
        return CHOSEN
    reason = _no_compiler()
    if reason is not None and asked == "compiled":
        raise ModeError(f"{VARIABLE} is 'compiled', but {reason}: {REMEDY}")
    return reason


def _no_compiler() -> str | None:
    """Return why numba cannot be used, None where it can."""
    if find_spec("numba") is None:
        return ABSENT
    if "numba" not in sys.modules:
        # SVML's functions differ from libm's in the last bit. numba reads the variable once, when it is imported.
        os.environ.setdefault(_NO_SVML, "1")
    try:
        import numba

        from otel_llm.core.compiling import jit  # noqa: F401  what it takes from inside numba is there, too

        config: Any = numba.config
    except Exception as broken:  # noqa: BLE001  versions that do not fit, a library that does not load: plain will do
        return f"numba cannot be imported ({' '.join(str(broken).split())})"
    if config.DISABLE_JIT:
        return "NUMBA_DISABLE_JIT is set"
    if config.USING_SVML:
        return f"numba was imported without {_NO_SVML}=1"
    return None
