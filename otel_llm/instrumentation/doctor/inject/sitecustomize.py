"""Start the recorder in the interpreters that `otel-llm doctor -- COMMAND` starts."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def _inject() -> None:
    # A Python without otel-llm, or one that fails to start it, runs the program as without the doctor.
    try:
        from otel_llm.instrumentation.doctor.injected import inject

        inject()
    except Exception as error:  # noqa: BLE001
        sys.stderr.write(f"otel-llm doctor cannot record pid {os.getpid()}: {type(error).__name__}: {error}\n")


def _next() -> None:
    """Run the sitecustomize that this one hides."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = Path(__file__).resolve().parent
    spec = PathFinder.find_spec("sitecustomize", [path for path in sys.path if Path(path).resolve() != here])
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_inject()
_next()
