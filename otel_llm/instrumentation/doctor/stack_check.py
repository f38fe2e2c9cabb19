"""Check which stacks are installed, in which versions, and whether our hooks fit them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from otel_llm.instrumentation.doctor.finding import Finding
from otel_llm.instrumentation.doctor.situation import version_of
from otel_llm.instrumentation.setup import STACKS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_llm.instrumentation.doctor.situation import Situation

OFF: Final = "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS"
TRY_S: Final = 60.0
"""The longest time for the import of a package."""
TRACK: Final = "wrap its streams in otel_llm.track(...)"

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+")


def check_stacks(situation: Situation) -> Iterator[Finding]:
    """Hook each installed stack in an interpreter of its own, all in parallel."""
    off = _off(situation)
    if "*" in off:
        remedy = f"take `*` out of {OFF}"
        yield Finding("stacks", "problem", f"{OFF} switches all stacks off", remedy, {"off": sorted(off)})
        return
    installed = [stack for stack, (package, _, _) in STACKS.items() if find_spec(package) is not None]
    if all(STACKS[stack][0].partition(".")[0] in sys.stdlib_module_names for stack in installed):
        text = f"none of {', '.join(STACKS)} is installed here, but what Python brings"
        yield Finding("stacks", "warning", text, f"run the doctor in the application's environment, or {TRACK}")
    tries = {stack: _try(stack, situation) for stack in installed if f"otel-llm-{stack}" not in off}
    for stack in installed:
        if stack in tries:
            yield _found(stack, tries[stack])
        else:
            remedy = f"take otel-llm-{stack} out of {OFF} if it should be recorded"
            yield Finding(f"stack.{stack}", "warning", f"{stack} is switched off by {OFF}", remedy)


def check_entry_points(situation: Situation) -> Iterator[Finding]:  # noqa: ARG001
    """Check the entry points that `opentelemetry-instrument` would load."""
    loaded = {point.name for point in entry_points(group="opentelemetry_instrumentor")}
    missing = sorted(f"otel-llm-{stack}" for stack in STACKS if f"otel-llm-{stack}" not in loaded)
    if missing:
        text = f"opentelemetry-instrument does not find {', '.join(missing)}"
        yield Finding("entry_points", "warning", text, "pip install --force-reinstall otel-llm", {"missing": missing})
    else:
        yield Finding("entry_points", "ok", "opentelemetry-instrument finds our hooks")


def _off(situation: Situation) -> set[str]:
    return {name for part in situation.environ.get(OFF, "").split(",") if (name := part.strip())}


def _try(stack: str, situation: Situation) -> subprocess.Popen[str]:
    return subprocess.Popen(  # noqa: S603  our own module
        [sys.executable, "-m", "otel_llm.instrumentation.doctor.hooking", stack],
        env=dict(situation.environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def _found(stack: str, trying: subprocess.Popen[str]) -> Finding:
    try:
        out, _ = trying.communicate(timeout=TRY_S)
        tried: dict[str, Any] = json.loads(out.splitlines()[-1])
    except (subprocess.TimeoutExpired, ValueError, IndexError):
        trying.kill()
        trying.communicate()
        return Finding(f"stack.{stack}", "problem", f"{stack} cannot be imported here", f"try `import {stack}`")
    requires = [str(each) for each in tried["requires"]]
    names = [name[0] for each in requires if (name := _NAME.match(each))]
    versions = {name: version for name in names if (version := version_of(name)) is not None}
    known = f" (known to work: {'; '.join(requires)})" if requires else ""
    said = " ".join([stack, *versions.values()][:2])
    facts = {"versions": versions, "known": requires, "hooked": tried["hooked"]}
    if tried["hooked"]:
        return Finding(f"stack.{stack}", "ok", f"{said} is recorded{known}", facts=facts)
    remedy = f"install a version that is known, or {TRACK}"
    return Finding(f"stack.{stack}", "problem", f"{said} is not recorded{known}", remedy, facts)
