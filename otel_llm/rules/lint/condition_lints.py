"""Lints of conditions: those that never or always hold, and questions that their facts cannot answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_llm.config.yaml_file import did_you_mean
from otel_llm.rules.language.facts import FACTS
from otel_llm.rules.language.intervals import Choice, domain, needing, number
from otel_llm.rules.language.satisfiable import boxes, example, full_box
from otel_llm.rules.lint.lints import LintFinding, shown
from otel_llm.rules.lint.unit_lints import COMPARES, tree, unit_lints, with_literals

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_llm.config.yaml_file import KeyPath
    from otel_llm.rules.language.condition import Condition
    from otel_llm.rules.language.intervals import Box
    from otel_llm.rules.language.types import Typed
    from otel_llm.rules.lint.lints import LocatedRule


def condition_lints(located: LocatedRule) -> Iterator[LintFinding]:
    """Find what is odd in each condition of a rule, and among them."""
    rule, path = located.rule, located.path
    held = boxes(tree(rule.when), True, full_box(tree(rule.when), classes=located.classes))
    yield from _truth(located, rule.when, (*path, "when"))
    yield from unit_lints(rule.when, (*path, "when"))
    if rule.resolve_when is not None:
        yield from _truth(located, rule.resolve_when, (*path, "resolve_when"))
        yield from unit_lints(rule.resolve_when, (*path, "resolve_when"))
        if held:
            yield from _resolving(located, rule.resolve_when)
    for index, action in enumerate(rule.actions):
        if action.only_if is not None:
            at = (*path, "actions", index, action.verb, "only_if")
            found = list(_truth(located, action.only_if, at))
            yield from found
            yield from unit_lints(action.only_if, at)
            if held and not found and rule.on_missing != "fire":
                yield from _never_beside_when(located, action.only_if, at)


def _truth(located: LocatedRule, condition: Condition, path: KeyPath) -> Iterator[LintFinding]:
    """Find a condition that never or always holds; if it is neither, its terms that decide nothing."""
    node, text = tree(condition), condition.text
    everything = full_box(node, classes=located.classes)
    if not boxes(node, True, everything):
        cause, why = _cause(node, text, everything, located.classes)
        yield LintFinding("never-true", path, why, _instead(cause, located.classes), text, cause)
    elif not boxes(node, False, everything):
        yield LintFinding("always-true", path, f"{shown(text, node)} always holds", "", text, node)
    else:
        yield from _idle_terms(located, node, text, path, everything)


def _idle_terms(
    located: LocatedRule, node: Typed, text: str, path: KeyPath, everything: list[Box]
) -> Iterator[LintFinding]:
    if node.op not in ("&&", "||"):
        return
    for term in node.args:
        if not boxes(term, node.op == "||", everything):
            if node.op == "||":
                cause, why = _cause(term, text, everything, located.classes)
            else:
                cause, why = term, f"{shown(text, term)} always holds"
            yield LintFinding("decides-nothing", path, why, _instead(cause, located.classes), text, cause)
        else:
            yield from _idle_terms(located, term, text, path, everything)


def _cause(node: Typed, text: str, everything: list[Box], classes: frozenset[str] | None) -> tuple[Typed, str]:
    """Return the part that keeps a condition from ever holding, and the reason."""
    if node.op == "&&":
        for count, term in enumerate(node.args):
            if not boxes(term, True, everything):
                return _cause(term, text, everything, classes)
            others = [one for one in node.args[:count] if not boxes(term, True, boxes(one, True, everything))]
            if others:
                return term, f"{shown(text, term)} never holds together with {shown(text, others[0])}"
    if node.op in COMPARES and node.args[0].op == "fact":
        name = node.args[0].name
        if boxes(node, True, full_box(node, classes=classes)):
            absent = [other for other in everything[0] if needing(other) == name]
            return node, f"{shown(text, node)} never holds while {' and '.join(absent)} is known"
        if all(arg.op == "literal" for arg in node.args[1:]):
            return node, f"{shown(text, node)} never holds: {name} is {domain(name, classes).text()}"
    return node, f"{shown(text, node)} never holds"


def _instead(node: Typed, classes: frozenset[str] | None) -> str:
    """Return the advice for a value out of a fact's range; "" for the lint's own."""
    for fact, literal in with_literals(node):
        value, values = literal.value, domain(fact.name, classes)
        if isinstance(value, str) and isinstance(values, Choice) and values.allowed:
            return did_you_mean(value, sorted(str(one) for one in values.allowed if one))
        if FACTS[fact.name].unit == "0..1" and isinstance(value, float) and 1 < value <= 100:
            return f"{fact.name} is a share of 1: write {number(value / 100)}"
        if not boxes(node, True, full_box(node, classes=classes)):
            return f"write a value that {fact.name} can have"
    return ""


def _never_beside_when(located: LocatedRule, only_if: Condition, path: KeyPath) -> Iterator[LintFinding]:
    when, own = tree(located.rule.when), tree(only_if)
    both = boxes(own, True, boxes(when, True, full_box(when, own, classes=located.classes)))
    if not both:
        message = f"{shown(only_if.text, own)} never holds while `when` does"
        yield LintFinding("never-true", path, message, "the action is never done", only_if.text, own)


def _resolving(located: LocatedRule, resolve_when: Condition) -> Iterator[LintFinding]:
    when, own = tree(located.rule.when), tree(resolve_when)
    path, text = (*located.path, "resolve_when"), resolve_when.text
    everything = full_box(when, own, classes=located.classes)
    values = example([when, own], boxes(own, True, boxes(when, True, everything)))
    if values is not None:
        facts = ", ".join(f"{name} {_literal(value)}" for name, value in values.items())
        yield LintFinding("resolve-overlaps-when", path, f"`when` holds as well at {facts}", "", text, own)
    elif not boxes(own, False, boxes(when, False, everything)) and boxes(own, True, everything):
        yield LintFinding("resolve-is-default", path, "it holds wherever `when` does not", "", text, own)


def _literal(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value).lower()
