"""How long a test waits."""

from __future__ import annotations

from typing import Final

WAIT_S: Final = 600.0
"""For what must come: only what hangs takes so long, however much runs beside the test."""
