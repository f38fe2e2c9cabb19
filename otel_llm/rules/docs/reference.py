"""The parts of docs/rules.md that are generated from the code's tables: facts, and the state machine.

`python -m otel_llm.rules.docs.reference docs/rules.md` writes them anew between their marks.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_llm.rules.engine.state_machine import TABLE, Event, Phase
from otel_llm.rules.language.facts import STREAM_FACTS, WINDOW_FACTS, WINDOWS, Fact

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def stream_facts() -> str:
    """Return the table of the facts of a stream, as Markdown."""
    return _table(
        ("fact", "type", "unit", "meaning", "before the first token", "in time"), map(_stream_row, STREAM_FACTS)
    )


def window_facts() -> str:
    """Return the table of the facts of instances and classes, a line for all windows of one."""
    suffix = f"_{WINDOWS[0]}"
    rows = []
    for fact in WINDOW_FACTS:
        if fact.name.endswith(suffix):
            meaning = fact.meaning.removesuffix(f", over {WINDOWS[0]}")
            rows.append((f"`{fact.name.removesuffix(suffix)}_<window>`", fact.type, fact.unit, meaning))
        elif not fact.name.endswith(tuple(f"_{window}" for window in WINDOWS)):
            rows.append((f"`{fact.name}`", fact.type, fact.unit, fact.meaning))
    return _table(("fact", "type", "unit", "meaning"), rows)


def state_table() -> str:
    """Return the state machine as a table: a row an event, a column a state."""
    rows = [(f"`{event}`", *(_cell(state, event) for state in Phase)) for event in Event]
    return _table(("an evaluation finds", *(f"while {state}" for state in Phase)), rows)


def state_diagram() -> str:
    """Return the state machine as a Mermaid diagram: the events that lead from one state to another."""
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> inactive"]
    edges: dict[tuple[Phase, Phase], list[str]] = {}
    for (state, event), (following, _) in TABLE.items():
        if following is not state:
            edges.setdefault((state, following), []).append(event)
    lines += [f"    {state} --> {following}: {', '.join(events)}" for (state, following), events in edges.items()]
    return "\n".join([*lines, "```"])


REFERENCE: Final[dict[str, Callable[[], str]]] = {
    "facts of streams": stream_facts,
    "facts of windows": window_facts,
    "state table": state_table,
    "state diagram": state_diagram,
}


def rewritten(page: str) -> str:
    """Return a page with every part as the code generates it now."""
    for name, draw in REFERENCE.items():
        begin, end = _marks(name)
        page = page[: page.index(begin) + len(begin)] + "\n" + draw() + "\n" + page[page.index(end) :]
    return page


def _marks(name: str) -> tuple[str, str]:
    return f"<!-- from the code: {name} -->", f"<!-- end: {name} -->"


def _stream_row(fact: Fact) -> tuple[str, ...]:
    moves = "linear" if fact.linear else "steps" if fact.steps else "constant"
    lasting = [] if fact.ages else ["never too old"]
    gap = ["missing while a segment is"] if fact.timed else []
    return f"`{fact.name}`", fact.type, fact.unit, fact.meaning, fact.before, ", ".join([moves, *lasting, *gap])


def _cell(state: Phase, event: Event) -> str:
    step = TABLE.get((state, event))
    if step is None:
        return "cannot happen"
    text = "stays" if step.phase is state else f"→ {step.phase}"
    return text if step.output is None else f"{text}, {step.output}"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    names = list(head)
    lines = [names, ["---"] * len(names), *(list(row) for row in rows)]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


if __name__ == "__main__":
    for file in map(Path, sys.argv[1:]):
        file.write_text(rewritten(file.read_text(encoding="utf-8")), encoding="utf-8")
