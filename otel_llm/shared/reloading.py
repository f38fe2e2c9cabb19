"""SIGHUP: take what was configured anew, each kind of it as a whole or not at all."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from otel_llm.rules.files.yamlfile import ConfigError
from otel_llm.shared.errors import CollectorError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_log = logging.getLogger(__name__)


class Reloader:
    """Reload kinds of configuration.

    Args:
        kinds: for each its name and what reloads it: returns words on what is there now, raises ConfigError or
            CollectorError and then has changed nothing.
    """

    def __init__(self, kinds: Sequence[tuple[str, Callable[[], str]]]) -> None:
        self._kinds = tuple(kinds)
        self.reloads = 0
        self.errors = 0

    def run(self) -> tuple[str | None, list[str]]:
        """Reload every kind; return one line on what was reloaded, if any was, and one on each that was not."""
        done, refused = [], []
        for name, reload in self._kinds:
            try:
                done.append(f"{name} ({reload()})")
            except (ConfigError, CollectorError) as problem:
                refused.append(f"{name} not reloaded, the old ones stay: {problem}")
            except TimeoutError:
                refused.append(f"{name}: not known whether they were reloaded, the evaluator is busy: ask again")
            except Exception:  # noqa: BLE001 - a bug of ours must not stop a service that runs
                _log.exception("otel-llm: %s could not be reloaded: this is a bug", name)
                refused.append(f"{name} not reloaded, the old ones stay: internal error")
        self.reloads += len(done)
        self.errors += len(refused)
        return (f"reloaded: {', '.join(done)}" if done else None), refused
