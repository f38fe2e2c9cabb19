"""The page of all facts, docs/facts.md, generated from the table of facts.

`python -m otel_llm.rules.docs.facts_page docs/facts.md` writes it anew.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from otel_llm.core.rule_tables import POLL_EVERY_NS
from otel_llm.rules.language.facts import LABELS, STREAM_FACTS, WINDOW_FACTS, WINDOWS, Scope, in_scope
from otel_llm.rules.language.intervals import domain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from otel_llm.rules.language.facts import Fact

_HEAD = """# Facts

Drawn from the table in `otel_llm/rules/language/facts.py` by `python -m otel_llm.rules.docs.facts_page docs/facts.md`:
what is checked, what is evaluated and what stands here are one. How facts are used in conditions: [rules](rules.md).
The docstring of that module has the steps to add a fact.

A fact is missing while it has no value; `int` and `double` do not mix; every length of time is in seconds. No fact is
ever NaN. The range is what `otel-llm rules check` reasons with: a condition outside it is reported as `never-true`.
"""


def facts_page() -> str:
    """Return the whole page as Markdown."""
    lines = [_HEAD, "## Streams", "", "In groups of `scope: stream`, one evaluation for each stream in flight.", ""]
    for fact in STREAM_FACTS:
        lines += _entry(fact.name, fact, _moves(fact))
    lines += [
        "## Instances and classes",
        "",
        "In groups of `scope: instance` and `scope: class`, for each instance and each class by its labels. Identity:",
        f"{_names('instance')} for an instance, {_names('class')} for a class.",
        "",
    ]
    suffix = f"_{WINDOWS[0]}"
    for fact in WINDOW_FACTS:
        if fact.name.endswith(suffix):
            stem = fact.name.removesuffix(suffix)
            name = ", ".join(f"{stem}_{window}" for window in WINDOWS)
            lines += _entry(name, fact, "", fact.meaning.removesuffix(f", over {WINDOWS[0]}") + ", over the window")
        elif not fact.name.endswith(tuple(f"_{window}" for window in WINDOWS)):
            lines += _entry(fact.name, fact, "as it is now")
    lines += [
        "## Labels",
        "",
        f"An alert is aggregated by some of {_code(LABELS)}; by nothing else, as nothing else has few values.",
    ]
    return "\n".join(lines) + "\n"


def _entry(names: str, fact: Fact, moves: str, meaning: str = "") -> Iterator[str]:
    yield f"### {_code(names.split(', '))}"
    yield ""
    text = meaning or fact.meaning
    yield f"{text[0].upper()}{text[1:]}."
    yield ""
    yield f"- type: {fact.type}" + (f", unit: {fact.unit}" if fact.unit else "")
    yield f"- range: {domain(fact.name).text()}"
    if fact.before:
        early = not fact.before.startswith('""') and fact.name != "exact_resume"
        yield f"- {'before the first token: ' if early else ''}{fact.before}"
    if moves:
        yield f"- in time: {moves}"
    if fact.timed:
        yield "- missing while a segment is, since it follows from the times of tokens"
    if "stream" in fact.scopes:
        yield "- missing once it is older than `max_fact_age`" if fact.ages else "- never too old"
    yield ""


def _moves(fact: Fact) -> str:
    if fact.linear:
        return "linear between tokens; its crossings are calculated, to the nanosecond"
    if fact.steps:
        return f"by steps; evaluated every {POLL_EVERY_NS // 1_000_000} ms and with every segment"
    if fact.ages:
        return "stands still between tokens"
    return f"the same from the first {'token' if fact.can_miss else 'segment'} on"


def _names(scope: Scope) -> str:
    return _code(name for name, fact in in_scope(scope).items() if fact.type == "string")


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    for file in map(Path, sys.argv[1:]):
        file.write_text(facts_page(), encoding="utf-8")
