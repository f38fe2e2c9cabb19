"""The common part of all stacks' instrumentors: hooks are made once the host imports a package, never before, and only
in known versions."""

from __future__ import annotations

import functools
import sys
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Final

import wrapt
from opentelemetry.instrumentation.dependencies import get_dependency_conflicts
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

from otel_llm.export import host_log
from otel_llm.export.host_log import OWN_CHARS, shown
from otel_llm.instrumentation.process import runtime

if TYPE_CHECKING:
    from collections.abc import Collection

    from otel_llm.instrumentation.process.patches import Patches

_awaited: Final[set[tuple[type, str]]] = set()
"""The packages whose import is waited for, and by whom: an import hook cannot be taken back, so once a process."""


class StackInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """The instrumentor of one stack.

    `stack` is its name in `setup.STACKS`, `package` the module whose import triggers the hooks, `requires` the versions
    that the hooks fit. A missing attribute, or another version: one warning, and nothing is recorded there.
    """

    stack: ClassVar[str]
    package: ClassVar[str]
    requires: ClassVar[tuple[str, ...]]

    _patches: Patches | None = None
    _active: bool = False

    @abstractmethod
    def _patch(self) -> Patches:
        """Replace the hooked functions; the package is imported. May raise anything: then nothing is recorded."""

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return the packages that must be installed for the hooks."""
        return self.requires

    def _instrument(self, **kwargs: Any) -> None:
        if runtime.disabled():
            return
        runtime.join(self.stack, functools.partial(runtime.configured, **kwargs))
        self._active = True
        if self.package in sys.modules:
            self._hook()
        elif (awaited := (type(self), self.package)) not in _awaited:
            _awaited.add(awaited)
            wrapt.register_post_import_hook(lambda _: self._hook(), self.package)

    def _uninstrument(self, **kwargs: Any) -> None:  # noqa: ARG002
        self._active = False
        if self._patches is not None:
            self._patches.undo()
            self._patches = None
        runtime.leave(self.stack)

    def _hook(self) -> None:
        """Make the hooks; raises nothing into the host's import."""
        if not self._active or self._patches is not None:
            return
        try:
            if (conflict := get_dependency_conflicts(self.requires)) is not None:
                host_log.warning("otel_llm does not record %s: %s", self.package, shown(conflict, OWN_CHARS))
                return
            self._patches = self._patch()
        except Exception as moved:  # noqa: BLE001
            words = "otel_llm does not know this version of %s and does not record it: %s"
            host_log.warning(words, self.package, moved)
