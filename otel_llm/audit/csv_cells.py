"""Text in a CSV file that a spreadsheet would run as a formula: a model may be called `=HYPERLINK(...)`.

Such text gets an apostrophe in front, which a spreadsheet takes for "this is text"; our readers take it off again.
Apostrophes in front of such text get one more, so that what is read is what was written.
"""

from __future__ import annotations

import re
from typing import Final

BEGINS_A_FORMULA: Final = "=+\\-@\t\r\n"
"""Characters that begin a formula, or are passed over before one, as part of a regular expression."""
_FORMULA: Final = re.compile(f"'*[{BEGINS_A_FORMULA}]")
GUARDED: Final = f"^'('*[{BEGINS_A_FORMULA}])"
"""A regular expression of guarded text; its group is what the text begins with."""


def guarded(text: str) -> str:
    """Return the text as a cell that no spreadsheet runs."""
    return f"'{text}" if _FORMULA.match(text) else text
