"""Judge what the failures of one request say of its backends. No I/O, no clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from otel_llm.relay.backends.backend import Backend
    from otel_llm.relay.backends.backends import Backends

MOST_BROKEN: Final = 2
"""The number of backends that a request may break: then it has one more try, since it may be the cause."""


class Blame:
    """The failures of one request. A failure counts against its backend only once another one has served the request.

    A request that fails everywhere says nothing about the backends: it may be the cause. If it broke several backends
    between two tokens, none of these failures counts, and it has one more try.
    """

    def __init__(self, backends: Backends, client: str) -> None:
        self._backends = backends
        self._client = client
        self._suspects: list[Backend] = []
        self._broken: set[str] = set()
        self.over = False
        """Whether the last try has failed."""

    @property
    def last(self) -> bool:
        """Tell whether the next try is the last one."""
        return len(self._broken) >= MOST_BROKEN

    def failed(self, backend: Backend, *, broke: bool, refused: bool = False) -> None:
        """Note that a backend did not serve the request.

        `broke`: it had taken it; `refused`: it took no connection, which no request can cause.
        """
        self.over = self.last
        self._backends.seen_to_fail(backend)
        if refused and backend.is_probed:
            self._backends.refused(backend)
            return
        self._suspects.append(backend)
        if broke:
            self._broken.add(backend.name)

    def served(self, backend: Backend) -> None:
        """Note that a backend brought a token, or the whole reply: the others could have done so, too."""
        if self._suspects and not self.last:
            for suspect in self._suspects:
                if suspect is not backend:
                    self._backends.failed(suspect, self._client)
        self._suspects.clear()
        self._broken.clear()
        self.over = False
