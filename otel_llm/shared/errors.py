"""What stops a service from starting, and what every port of ours refuses.

The whole tree is in `otel_llm.collector.receive.errors`.
"""

from __future__ import annotations


class CollectorError(Exception):
    """Stand for everything that the service itself reports; see `otel_llm.collector.receive.errors` for the tree."""


class StartError(CollectorError):
    """Say why the service does not start and what to do about it."""


class AddressError(StartError):
    """Say that a door cannot listen where it was told to."""


class TlsFileError(StartError):
    """Say that a PEM file cannot be used; `key` is its key in the settings file."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


class RefusalError(CollectorError):
    """Refuse one request; the message goes to the client, so it holds nothing of ours (no paths, no internals)."""

    retry_after_s: int = 0
    """When the client may try again; 0: it need not."""
    counted: bool = False
    """Whether whoever raised it has counted it."""


class UnauthenticatedError(RefusalError):
    """Say that an export, or a question, brings no token that we know; what it brought is never repeated."""


class ForbiddenError(RefusalError):
    """Say that a page of this origin may not post here, or that we do not answer under this name."""


class TooLargeError(RefusalError):
    """Say that a message is over a limit."""


class UnavailableError(RefusalError):
    """Say that nothing can be taken now."""

    retry_after_s = 5
