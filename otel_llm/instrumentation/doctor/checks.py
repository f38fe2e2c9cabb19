"""The checks of an environment, in the order of the report."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_llm.instrumentation.doctor import environment_checks
from otel_llm.instrumentation.doctor.endpoint_check import check_endpoint
from otel_llm.instrumentation.doctor.finding import Finding, version_of
from otel_llm.instrumentation.setup import STACKS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from otel_llm.instrumentation.doctor.finding import Situation

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
    label = " ".join([stack, *versions.values()][:2])
    facts = {"versions": versions, "known": requires, "hooked": tried["hooked"]}
    if tried["hooked"]:
        return Finding(f"stack.{stack}", "ok", f"{label} is recorded{known}", facts=facts)
    remedy = f"install a version that is known, or {TRACK}"
    return Finding(f"stack.{stack}", "problem", f"{label} is not recorded{known}", remedy, facts)


_TRACK: Final = "wrap its streams in otel_llm.track(...)"


class Unhooked(NamedTuple):
    """A package that streams in a way that no hook sees."""

    distribution: str
    why: str


UNHOOKED: Final = (
    Unhooked("google-cloud-aiplatform", "Vertex over gRPC is not read"),
    Unhooked("tritonclient", "Triton's streams are not read"),
    Unhooked("xai-sdk", "it streams over gRPC"),
    Unhooked("replicate", "it reads its event streams by GET"),
    Unhooked("llama-cpp-python", "it generates in this process"),
    Unhooked("gpt4all", "it generates in this process"),
    Unhooked("mlx-lm", "it generates in this process"),
)
"""Packages known to stream in ways of their own; realtime voice over websockets has no tokens of text to time."""


def check_unhooked(situation: Situation) -> Iterator[Finding]:  # noqa: ARG001
    """Name each installed package whose streams pass unrecorded."""
    for one in UNHOOKED:
        version = version_of(one.distribution)
        if version is not None:
            text = f"{one.distribution} {version} is not recorded: {one.why}"
            yield Finding(f"unrecorded.{one.distribution}", "warning", text, _TRACK, {"version": version})


CHECKS: Final[tuple[Callable[[Situation], Iterable[Finding]], ...]] = (
    environment_checks.check_switch,
    check_stacks,
    check_entry_points,
    check_unhooked,
    check_endpoint,
    environment_checks.check_sampling,
    environment_checks.check_limits,
    environment_checks.check_workers,
    environment_checks.check_clocks,
    environment_checks.check_classes,
)


def examine(situation: Situation) -> list[Finding]:
    """Run every check; a check that fails is a line of its own and stops no other."""
    findings: list[Finding] = []
    for check in CHECKS:
        name = check.__name__.removeprefix("check_")
        try:
            findings += check(situation)
        except Exception as bug:  # noqa: BLE001
            text = f"this check failed: {type(bug).__name__}: {bug}"
            findings.append(Finding(name, "unchecked", text, "report it, it is a bug of otel-llm"))
    return findings
