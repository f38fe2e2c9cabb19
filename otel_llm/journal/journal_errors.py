"""What can go wrong with a journal: another process has it, or it cannot be written."""

from __future__ import annotations

from otel_llm.shared.errors import StartError, UnavailableError


class JournalInUseError(StartError):
    """Say that another process has this journal."""


class JournalError(UnavailableError):
    """Say that the journal cannot be written, so nothing is acknowledged; `reason` is for our own logs."""

    def __init__(self, reason: str) -> None:
        super().__init__("the journal cannot be written")
        self.reason = reason
