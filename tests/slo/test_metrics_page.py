"""The page of the arithmetic says what the code does: its sessions are run."""

from __future__ import annotations

import doctest
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_the_sessions_on_the_page() -> None:
    found = doctest.testfile(str(PAGE), module_relative=False, encoding="utf-8")
    assert found.attempted >= 13
    assert found.failed == 0
