"""The page of all lints, docs/lints.md, generated from their table.

`python -m otel_llm.rules.docs.lints_page docs/lints.md` writes it anew.
"""

from __future__ import annotations

import sys
from pathlib import Path

from otel_llm.rules.lint.lints import LINTS

_HEAD = """# Lints

Drawn from the table in `otel_llm/rules/lint/lints.py` by `python -m otel_llm.rules.docs.lints_page docs/lints.md`.

`otel-llm rules check` refuses what is wrong, and warns of what is allowed and yet is hardly what was meant. A warning
has the place, what is odd, what to write instead, and the lint's name in brackets; it counts only with `--strict`.
Files that are refused are not linted. With `--slo FILE` the names of the SLO classes are known too, and a comparison of
`slo_class` with any other is `never-true`.

Whether a condition can hold is reasoned out over the [ranges of the facts](facts.md), in intervals that hold every
value that the facts can have, rounding included. That is sound: of a condition that holds for some facts within their
ranges it is never said that it cannot (a test tries random conditions on random facts). It is not complete: two facts
in one comparison are not tied to each other, but for the few pairs whose first never exceeds the second. A sender
that breaks the wire contract (a `measured_at` of its own) can make true what is called `never-true`.

An alert's label that takes many values, such as a trace id, is no lint: it is refused, whatever else is asked.
"""


def lints_page() -> str:
    """Return the whole page as Markdown."""
    lines = [_HEAD]
    for lint in LINTS:
        lines += [f"## {lint.name}", "", f"Finds {lint.finds}.", "", f"What to do: {lint.remedy}.", ""]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    for file in map(Path, sys.argv[1:]):
        file.write_text(lints_page(), encoding="utf-8")
