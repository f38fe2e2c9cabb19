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


def shown_in(mode: dict[str, str], cache: Path, module: str, expression: str) -> str:
    """Return what an expression of names of a test's module prints in a mode; `cache`: where its kernels are kept."""
    environment = {
        **os.environ,
        **mode,
        "OTEL_LLM_CACHE_DIR": str(cache),
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests"))),
    }
    command = [sys.executable, "-c", f"from {module} import *; print({expression})"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()
