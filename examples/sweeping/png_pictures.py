"""Pictures of figures: one PNG each, by the audit's page in a headless Chromium."""

from __future__ import annotations

import runpy
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otel_llm.audit.report.html_page import page, picture

if TYPE_CHECKING:
    from collections.abc import Mapping

ABOVE: int = 110
"""Pixels of the page above a figure."""


def draw_all(folder: Path, figures: Mapping[str, tuple[str, dict[str, Any]]]) -> bool:
    """Write `NAME.png` of each (title, figure with a height); False if there is no browser."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print("no Chromium found: the tables are computed, the pictures are not drawn", file=sys.stderr)
        return False
    photograph = runpy.run_path(str(Path(__file__).parents[1] / "paper-figures" / "draw.py"))["photograph"]
    for name, (title, figure) in figures.items():
        with tempfile.TemporaryDirectory() as work:
            file = Path(work) / "page.html"
            file.write_text(page(title, picture(name, title, title, ""), {name: figure}), encoding="utf-8")
            photograph(browser, file, folder / f"{name}.png", figure["layout"]["height"] + ABOVE)
    return True
