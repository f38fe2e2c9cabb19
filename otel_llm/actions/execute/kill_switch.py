"""The kill switch: no action is done while its file exists, or while its existence cannot be checked."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from otel_llm.actions.execute.action_attempts import NotSent

if TYPE_CHECKING:
    from pathlib import Path

log = logging.getLogger(__name__)


@dataclass(slots=True)
class KillSwitch:
    """One file to check; None: there is no kill switch."""

    path: Path | None = None
    _killed: bool = False

    def forbidden(self) -> NotSent | None:
        """Return why nothing may be done now, None when it may; may wait for the disk."""
        if self.path is None:
            return None
        try:
            self.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            self._killed = False
            return None
        except OSError as problem:
            return self.killed(f"the kill switch cannot be read: {problem.strerror}")
        return self.killed("the kill switch is there")

    def killed(self, reason: str) -> NotSent:
        """Return that nothing is done for this reason; it is logged once until the switch is off again."""
        if not self._killed:
            log.warning("otel-llm: no action is done: %s (%s)", reason, self.path)
        self._killed = True
        return NotSent("shadow", reason)
