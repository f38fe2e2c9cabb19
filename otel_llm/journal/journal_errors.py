"""The errors of a journal."""

from __future__ import annotations

from otel_llm.config.errors import StartError
from otel_llm.shared.errors import UnavailableError


class JournalInUseError(StartError):
    """Another process writes this journal."""


class JournalError(UnavailableError):
    """The journal cannot be written: no export is acknowledged. `reason` is for the log, not for clients."""

    def __init__(self, reason: str) -> None:
        super().__init__("the journal cannot be written")
        self.reason = reason
