"""The errors that keep a service from starting."""

from __future__ import annotations


class CollectorError(Exception):
    """The base of all errors of a service; `otel_llm.collector.receive.errors` has the tree."""


class StartError(CollectorError):
    """The service cannot start; the message gives reason and remedy."""


class TlsFileError(StartError):
    """A PEM file cannot be used; `key`: its key in the settings file."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key
