"""Text in a CSV file that a spreadsheet would run as a formula: a model may be called `=HYPERLINK(...)`.

Such text gets a leading apostrophe, which a spreadsheet reads as "this is text"; our readers remove it. Leading
apostrophes of such text get one more, so that reading gives what was written.
"""

from __future__ import annotations

import re
from typing import Final

BEGINS_A_FORMULA: Final = "=+\\-@\t\r\n"
"""Characters that begin a formula, or are skipped before one, as part of a regular expression."""
_FORMULA: Final = re.compile(f"'*[{BEGINS_A_FORMULA}]")
GUARDED: Final = f"^'('*[{BEGINS_A_FORMULA}])"
"""A regular expression of guarded text; its group is the beginning of the text."""


def guarded(text: str) -> str:
    """Return the text as a cell that no spreadsheet evaluates."""
    return f"'{text}" if _FORMULA.match(text) else text
