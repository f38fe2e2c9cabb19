"""The error of a listener, and the refusals of every port.

The whole tree is in `otel_llm.collector.receive.errors`.
"""

from __future__ import annotations

from otel_llm.config.errors import CollectorError, StartError


class AddressError(StartError):
    """A listener cannot be bound to its address."""


class RefusalError(CollectorError):
    """A request is refused; the message is for the client, so it holds no paths and no internals."""

    retry_after_s: int = 0
    """When the client may retry; 0: never."""
    counted: bool = False
    """Whether it is counted already."""


class UnauthenticatedError(RefusalError):
    """A request has no known token; the message never repeats the token."""


class ForbiddenError(RefusalError):
    """The origin of a browser's page, or the host name of a request, is not allowed."""


class TooLargeError(RefusalError):
    """A message is over a limit."""


class UnavailableError(RefusalError):
    """Nothing can be accepted now."""

    retry_after_s = 5
