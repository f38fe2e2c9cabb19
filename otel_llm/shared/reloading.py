"""Reloads at SIGHUP, each kind of configuration as a whole or not at all."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from otel_llm.config.errors import CollectorError
from otel_llm.config.yaml_file import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_log = logging.getLogger(__name__)


class Reloader:
    """Reloads kinds of configuration.

    Args:
        kinds: pairs of a name and a function. The function reloads, and returns a description of the new state; it
            raises ConfigError or CollectorError, and has then changed nothing.
    """

    def __init__(self, kinds: Sequence[tuple[str, Callable[[], str]]]) -> None:
        self._kinds = tuple(kinds)
        self.reloads = 0
        self.errors = 0

    def run(self) -> tuple[str | None, list[str]]:
        """Reload every kind.

        Returns:
            A line on the reloaded kinds, None if there are none; and a line on each failure.
        """
        done, refused = [], []
        for name, reload in self._kinds:
            try:
                done.append(f"{name} ({reload()})")
            except (ConfigError, CollectorError) as problem:
                refused.append(f"{name} not reloaded, the old ones stay: {problem}")
            except TimeoutError:
                refused.append(f"{name}: not known whether they were reloaded, the evaluator is busy: try again")
            except Exception:  # noqa: BLE001 - a bug must not stop a running service
                _log.exception("otel-llm: %s could not be reloaded: this is a bug", name)
                refused.append(f"{name} not reloaded, the old ones stay: internal error")
        self.reloads += len(done)
        self.errors += len(refused)
        return (f"reloaded: {', '.join(done)}" if done else None), refused
