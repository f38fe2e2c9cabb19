"""Instances and classes in tests: an evaluator with rules of these scopes, told in ms since T0, a whole second."""

from __future__ import annotations

from collections.abc import Mapping

from rules.scripted import ruleset
from support.core.core_cases import at, commit, ends, request, segment, take
from support.core.core_fleets import Seen
from support.otlp import IDENTITY, T0_NS, Value

from otel_llm import semconv
from otel_llm.rules.files.ruleset import RuleSet

MS = 1_000_000


def scoped(scope: str, when: str, **settings: str) -> RuleSet:
    """Load one rule R of a scope that alerts, `for_` for the key `for`."""
    lines = [f"    {name.rstrip('_')}: {value}" for name, value in settings.items() if name != "actions"]
    actions = settings.get("actions", "[{alert: {name: A}}]")
    head = ["version: 1", "groups:", "- name: g", f"  scope: {scope}", "  rules:", "  - rule: R"]
    return ruleset("\n".join([*head, f"    when: {when!r}", *lines, f"    actions: {actions}", ""]))


def identity(instance: str = "", slo_class: str = "", model: str = "m") -> Mapping[str, Value]:
    """Return what segment 0 says."""
    stated: dict[str, Value] = {**IDENTITY, semconv.GEN_AI_REQUEST_MODEL: model}
    if instance:
        stated[semconv.INSTANCE] = instance
    if slo_class:
        stated[semconv.SLO_CLASS] = slo_class
    return stated


def whole(
    one: Seen,
    ms: float,
    *,
    number: int,
    met: bool = True,
    outcome: str = "completed",
    reason: str | None = None,
    stated: Mapping[str, Value] = IDENTITY,
) -> None:
    """Let a request of one token begin and end at `ms`: in time, or 5 s after its commit; `reason`: why it stopped."""
    ending = ends(1, 2, outcome)
    if reason is not None:
        ending = {**ending, semconv.GEN_AI_RESPONSE_FINISH_REASONS: (reason,)}
    start = ms - 100 if met else ms - 5_000
    spans = [
        commit(start, request=number, stated=stated),
        segment(1, 0, [ms], ms, request=number, stated=ending),
        request(ms, number=number, start=start, stated=stated),
    ]
    take(one, ms, *spans)


def reported(one: Seen) -> list[tuple[str, str, str, float, dict[str, object]]]:
    """Tell the decisions: rule, state, outcome, flip in ms since T0, facts."""
    return [
        (decision.rule, decision.state, decision.outcome, (decision.flip_ns - T0_NS) / MS, dict(decision.facts))
        for decision in one.decisions
    ]


__all__ = ["at", "commit", "ends", "identity", "reported", "request", "scoped", "segment", "take", "whole"]
