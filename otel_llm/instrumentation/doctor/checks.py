"""The checks of an environment, in the order of the report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_llm.instrumentation.doctor import environment_checks
from otel_llm.instrumentation.doctor.endpoint_check import check_endpoint
from otel_llm.instrumentation.doctor.finding import Finding
from otel_llm.instrumentation.doctor.stack_check import check_entry_points, check_stacks
from otel_llm.instrumentation.doctor.unhooked_check import check_unhooked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from otel_llm.instrumentation.doctor.situation import Situation

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
