"""Lints of actions: what nothing limits, what cannot work, what stands twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_llm.rules.language.intervals import Choice
from otel_llm.rules.language.satisfiable import boxes, whole_box
from otel_llm.rules.lint.lints import Complaint
from otel_llm.rules.lint.unit_lints import tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from otel_llm.rules.files.ruleset import Action, Limits
    from otel_llm.rules.files.yamlfile import KeyPath
    from otel_llm.rules.lint.lints import Placed


def action_lints(placed: Placed) -> Iterator[Complaint]:
    """Find what is odd in each action of a rule, and between them."""
    seen: set[str] = set()
    for index, action in enumerate(placed.rule.actions):
        path = (*placed.path, "actions", index, action.verb)
        same = str((action.verb, action.arguments, action.only_if and action.only_if.canonical))
        if same in seen:
            yield Complaint("duplicate-action", path, f"the same {action.verb} stands above")
        seen.add(same)
        if action.verb != "alert":
            yield from _acting(placed, action, path)


def alert_lints(rules: Iterable[Placed]) -> Iterator[tuple[Placed, Complaint]]:
    """Find alerts of one name with other labels, over all rules that are loaded together."""
    first: dict[str, tuple[tuple[str, ...], str]] = {}
    for placed in rules:
        for index, action in enumerate(placed.rule.actions):
            if action.verb != "alert":
                continue
            arguments = dict(action.arguments)
            name, by = str(arguments["name"]), arguments["by"]
            labels = tuple(sorted(by)) if isinstance(by, tuple) else ()
            before, where = first.setdefault(name, (labels, placed.rule.name))
            if before != labels:
                message = f"{name} has the labels [{', '.join(before)}] in rule {where}"
                path = (*placed.path, "actions", index, "alert")
                yield placed, Complaint("alert-labels-differ", path, message)


def _acting(placed: Placed, action: Action, path: KeyPath) -> Iterator[Complaint]:
    entry = path[:-1]
    if not _limited(action.limits):
        yield Complaint("no-budget", path, f"nothing limits this {action.verb}")
    if action.ttl_ns == 0:
        yield Complaint("expires-at-once", (*entry, "ttl"), "too old as soon as it is decided", "give it 400ms or so")
    if action.mode == "enforce" and placed.rule.on_missing == "fire":
        message = f"missing facts would set off this {action.verb}"
        yield Complaint("fire-on-missing", (*entry, "mode"), message)
    if action.verb == "migrate" and _may_lack_exact_resume(placed, action):
        yield Complaint("no-exact-resume", path, "also of streams that cannot be resumed token for token")


def _limited(limits: Limits) -> bool:
    return any(
        limit is not None for limit in (limits.per_request, limits.per_instance, limits.per_group, limits.in_flight)
    )


def _may_lack_exact_resume(placed: Placed, action: Action) -> bool:
    nodes = [tree(placed.rule.when)] if placed.rule.on_missing != "fire" else []
    nodes += [] if action.only_if is None else [tree(action.only_if)]
    found = whole_box(*nodes, classes=placed.classes)
    for node in nodes:
        found = boxes(node, True, found)
    unknown = Choice(frozenset((True, False)))
    return any(one.get("exact_resume", unknown) != Choice(frozenset((True,))) for one in found)
