"""The anchors of a Markdown page, as GitHub makes them of its headings."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path


def anchors(text: str) -> set[str]:
    """Return the anchors of the headings; of those that are alike, all but the first end in a number."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    seen: Counter[str] = Counter()
    found = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *$", prose, re.MULTILINE):
        shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        found.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return found


def leads(page: Path, target: str) -> bool:
    """Return whether a link on a page leads to a file and, if it has one, to an anchor there."""
    path, _, anchor = target.partition("#")
    there = page.parent / path if path else page
    return there.exists() and (not anchor or anchor in anchors(there.read_text(encoding="utf-8")))
