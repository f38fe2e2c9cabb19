"""Lints of actions: missing limits, actions that cannot work, duplicates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_llm.rules.language.intervals import Choice
from otel_llm.rules.language.satisfiable import boxes, full_box
from otel_llm.rules.language.snapshot import COUNTING
from otel_llm.rules.lint.lints import LintFinding
from otel_llm.rules.lint.unit_lints import parts, tree, with_literals

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from otel_llm.config.yaml_file import KeyPath
    from otel_llm.rules.files.ruleset import Action, Limits
    from otel_llm.rules.lint.lints import LocatedRule

_COUNTED: Final = ("runway_seconds", "tokens", "tokens_read")
"""The facts of a stream that change most if its tokens are not counted right."""


def action_lints(located: LocatedRule) -> Iterator[LintFinding]:
    """Find what is odd in each action of a rule, and among them."""
    seen: set[str] = set()
    for index, action in enumerate(located.rule.actions):
        path = (*located.path, "actions", index, action.verb)
        same = str((action.verb, action.arguments, action.only_if and action.only_if.canonical))
        if same in seen:
            yield LintFinding("duplicate-action", path, f"the same {action.verb} stands above")
        seen.add(same)
        if action.verb != "alert":
            yield from _other_than_alert(located, action, path)


def alert_lints(rules: Iterable[LocatedRule]) -> Iterator[tuple[LocatedRule, LintFinding]]:
    """Find alerts of one name with different labels, over all rules that are loaded together."""
    first: dict[str, tuple[tuple[str, ...], str]] = {}
    for located in rules:
        for index, action in enumerate(located.rule.actions):
            if action.verb != "alert":
                continue
            arguments = dict(action.arguments)
            name, by = str(arguments["name"]), arguments["by"]
            labels = tuple(sorted(by)) if isinstance(by, tuple) else ()
            before, where = first.setdefault(name, (labels, located.rule.name))
            if before != labels:
                message = f"{name} has the labels [{', '.join(before)}] in rule {where}"
                path = (*located.path, "actions", index, "alert")
                yield located, LintFinding("alert-labels-differ", path, message)


def _other_than_alert(located: LocatedRule, action: Action, path: KeyPath) -> Iterator[LintFinding]:
    entry = path[:-1]
    if not _limited(action.limits):
        yield LintFinding("no-budget", path, f"nothing limits this {action.verb}")
    if action.ttl_ns == 0:
        yield LintFinding("expires-at-once", (*entry, "ttl"), "too old as soon as it is decided", "give it 400ms or so")
    if action.mode == "enforce" and located.rule.on_missing == "fire":
        message = f"missing facts would set off this {action.verb}"
        yield LintFinding("fire-on-missing", (*entry, "mode"), message)
    if action.mode == "enforce" and _trusts_any_count(located, action):
        message = f"this {action.verb} depends on tokens that may be estimated"
        yield LintFinding("uncounted-tokens", (*entry, "mode"), message)
    if action.verb == "migrate" and _may_lack_exact_resume(located, action):
        yield LintFinding("no-exact-resume", path, "also of streams that cannot be resumed token for token")


def _limited(limits: Limits) -> bool:
    return any(
        limit is not None for limit in (limits.per_request, limits.per_instance, limits.per_group, limits.in_flight)
    )


def _trusts_any_count(located: LocatedRule, action: Action) -> bool:
    conditions = [located.rule.when, *(() if action.only_if is None else (action.only_if,))]
    if any(not set(COUNTING).isdisjoint(one.facts) for one in conditions):
        return False
    every = [part for one in conditions for part in parts(tree(one))]
    counted = sum(part.op == "fact" and part.name in _COUNTED for part in every)
    # Whether there is a token at all does not depend on how tokens are counted.
    beside_none = [fact.name for part in every for fact, literal in with_literals(part) if literal.value == 0]
    return counted > sum(name in ("tokens", "tokens_read") for name in beside_none)


def _may_lack_exact_resume(located: LocatedRule, action: Action) -> bool:
    nodes = [tree(located.rule.when)] if located.rule.on_missing != "fire" else []
    nodes += [] if action.only_if is None else [tree(action.only_if)]
    found = full_box(*nodes, classes=located.classes)
    for node in nodes:
        found = boxes(node, True, found)
    unknown = Choice(frozenset((True, False)))
    return any(one.get("exact_resume", unknown) != Choice(frozenset((True,))) for one in found)
