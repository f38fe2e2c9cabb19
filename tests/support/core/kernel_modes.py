"""What an expression gives in a process whose kernels are plain Python, or are compiled with bounds checks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from otel_llm.core.compiling.mode import VARIABLE

MODES: Final = ({VARIABLE: "plain"}, {"NUMBA_BOUNDSCHECK": "1"})
"""The environment of each mode beside the usual one."""
ROOT = Path(__file__).parents[3]


def shown_in(mode: dict[str, str], module: str, expression: str) -> str:
    """Return what an expression of names of a test's module prints in a mode.

    Kernels are kept where those of this process are, in a folder of the mode's own: the first test compiles them.
    """
    environment = {
        **os.environ,
        **mode,
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests"))),
    }
    command = [sys.executable, "-c", f"from {module} import *; print({expression})"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()
