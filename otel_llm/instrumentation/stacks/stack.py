"""What the instrumentors of all stacks share: hooks once the host imports a package, never before, and only in versions
that are known."""

from __future__ import annotations

import functools
import logging
import sys
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Final

import wrapt
from opentelemetry.instrumentation.dependencies import get_dependency_conflicts
from opentelemetry.instrumentation.instrumentor import BaseInstrumentor  # type: ignore[attr-defined]

from otel_llm.instrumentation.process import runtime

if TYPE_CHECKING:
    from collections.abc import Collection

    from otel_llm.instrumentation.process.patches import Patches

_log: Final = logging.getLogger("otel_llm")
_awaited: Final[set[tuple[type, str]]] = set()
"""The packages whose import is waited for, and by whom: an import hook cannot be taken back, so once a process."""


class StackInstrumentor(BaseInstrumentor):  # type: ignore[misc]
    """Records one stack.

    `stack` is its name in `setup.STACKS`, `package` the module after whose import the hooks are made, `requires` what
    the hooks are known to fit. A hook that moved, or another version: one warning, and nothing is recorded there.
    """

    stack: ClassVar[str]
    package: ClassVar[str]
    requires: ClassVar[tuple[str, ...]]

    _patches: Patches | None = None
    _active: bool = False

    @abstractmethod
    def _patch(self) -> Patches:
        """Replace what is to be hooked; the package is imported. May raise anything: then nothing is recorded."""

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return what must be installed for this to do anything."""
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
        """Make the hooks; nothing is raised to whoever imports the package."""
        if not self._active or self._patches is not None:
            return
        try:
            if (conflict := get_dependency_conflicts(self.requires)) is not None:
                _log.warning("otel_llm does not record %s: %s", self.package, conflict)
                return
            self._patches = self._patch()
        except Exception:  # noqa: BLE001
            _log.warning("otel_llm found %s other than it knows it and does not record it", self.package, exc_info=True)
