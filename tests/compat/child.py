"""Run the modes of one case in the environment of its packages: one JSON line in, one out, for each call.

Arguments: the case's script, and `bare`, `instrument` or `command` (recorded by `opentelemetry-instrument`). Requests
come on standard input; results go to the file descriptor that COMPAT_RESULTS names, since packages print.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import inspect
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))  # this file is run by its path, in another environment

from compat.asking import Ask

LEFT_S = 0.4
"""A stream that is left by `break` ends one flush later."""


def _load(script: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("compat_case", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _call(module: ModuleType, runner: asyncio.Runner, mode: str, ask: Ask) -> dict[str, Any]:
    """Make one call; return what the caller got and what was raised."""
    result: dict[str, Any] = {"error": None}
    try:
        made = getattr(module, mode)(ask)
        if inspect.iscoroutine(made):
            made = runner.run(made)
        result["returned"] = repr(made)
    except Exception as error:  # noqa: BLE001  what is raised is compared
        result["error"] = [type(error).__module__ + "." + type(error).__qualname__, str(error)]
    result["got"] = ask.got
    return result


async def _settled() -> None:
    """Let the loop close the generators that were dropped, and Python collect what they held."""
    for _ in range(2):
        gc.collect()
        await asyncio.sleep(0.05)
    gc.collect()
    await asyncio.sleep(LEFT_S)


def main(script: str, way: str) -> None:
    """Answer until standard input ends."""
    if way == "instrument":
        import otel_llm

        otel_llm.instrument()
    module = _load(script)
    with os.fdopen(int(os.environ["COMPAT_RESULTS"]), "w", encoding="utf-8") as results, asyncio.Runner() as runner:
        for line in sys.stdin:
            asked = json.loads(line)
            mode = asked.pop("mode")
            result = _call(module, runner, mode, Ask(**asked))
            if way != "bare":
                import otel_llm

                if asked["stop_after"] is not None:
                    runner.run(_settled())
                result["flushed"] = otel_llm.flush(10)
            results.write(json.dumps(result) + "\n")
            results.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
