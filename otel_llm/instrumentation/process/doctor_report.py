"""Report a process's recordings to the doctor: a file, rewritten after each change.

One file a process, in the folder of `OTEL_LLM_DOCTOR_DIR`, always replaced completely: a killed process leaves its
newest. A forked child writes one of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from otel_llm.export import host_log
from otel_llm.export.clock import wall_ns

if TYPE_CHECKING:
    from collections.abc import Collection

    from otel_llm.instrumentation.core.stats import Stats
    from otel_llm.instrumentation.segments.model_chunks import KnownModels

FOLDER_VARIABLE: Final = "OTEL_LLM_DOCTOR_DIR"
MAX_WARNINGS: Final = 20
MAX_TEXT: Final = 300

_log: Final = logging.getLogger("otel_llm")


class Reported(Protocol):
    """The recorder that a report is about; `runtime.Runtime` in an application."""

    slo_class: str | None
    refused_classes: int
    stats: Stats
    models: KnownModels

    @property
    def slo_classes(self) -> Collection[str] | None:
        """The known classes, None if every name is."""

    @property
    def sampling(self) -> str:
        """Which streams are sent: all, or those whose parent is sampled."""

    @property
    def dropped(self) -> int:
        """The number of dropped segments so far."""

    def provider(self) -> object:
        """Return the application's TracerProvider."""


class Reporter:
    """The writer of one runtime's report."""

    def __init__(self, runtime: Reported, folder: Path) -> None:
        self._runtime = runtime
        self._folder = folder
        self._warnings: list[str] = []
        self._pid = os.getpid()
        self._since_ns = wall_ns()
        self._changed = False
        self._writing = False

    def begin(self) -> None:
        """Write now, and after each change."""
        # A filter and no handler: a logger with a handler of its own prints no more by default.
        _log.addFilter(self._heard)
        atexit.register(self._write)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)
        self._listen()

    def _listen(self) -> None:
        self._runtime.stats.changed = self._write
        self._write()

    def _after_fork(self) -> None:
        self._pid, self._since_ns, self._warnings = os.getpid(), wall_ns(), []
        self._writing = False  # the thread that wrote is the parent's
        self._listen()

    def _heard(self, record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING and len(self._warnings) < MAX_WARNINGS:
            text = record.getMessage()[:MAX_TEXT]
            if text not in self._warnings:
                self._warnings.append(text)
                self._write()
        return True

    def _write(self) -> None:
        self._changed = True
        if self._writing:  # another thread writes, or the garbage collector interrupted a write, which goes on
            return
        self._writing = True
        try:
            path = self._folder / f"{self._pid}-{self._since_ns}.json"
            part = path.with_suffix(".part")
            while self._changed:
                self._changed = False
                part.write_text(json.dumps(self._report()), encoding="utf-8")
                part.replace(path)
        except Exception as error:  # noqa: BLE001  the doctor is gone, or the disk is full: the application goes on
            host_log.say(logging.DEBUG, "otel_llm could not write for its doctor: %s", error)
        finally:
            self._writing = False

    def _report(self) -> dict[str, Any]:
        runtime = self._runtime
        return {
            "pid": self._pid,
            "program": Path((getattr(sys, "argv", None) or ["python"])[0]).name,
            **runtime.stats.snapshot(),
            "dropped": runtime.dropped,
            "refused_classes": runtime.refused_classes,
            "slo_class": runtime.slo_class,
            "slo_classes": None if runtime.slo_classes is None else sorted(runtime.slo_classes),
            "sampling": runtime.sampling,
            "provider": provider_facts(runtime.provider()),
            "workers": worker_facts(),
            "miscounted": runtime.models.off(),
            "warnings": list(self._warnings),
        }


def begin(runtime: Reported) -> None:
    """Report on a starting runtime, if a doctor asks for it; never raises."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder:
        with contextlib.suppress(Exception):
            Reporter(runtime, Path(folder)).begin()


def provider_facts(provider: object) -> dict[str, Any]:
    """Return the visible facts of a TracerProvider: `processors` is None if they cannot be known."""
    processors = getattr(getattr(provider, "_active_span_processor", None), "_span_processors", None)
    limits = getattr(provider, "_span_limits", None)
    sampler = getattr(provider, "sampler", None)
    return {
        "type": type(provider).__name__,
        "processors": None if processors is None else [type(processor).__name__ for processor in processors],
        "sampler": None if sampler is None else str(sampler.get_description())[:MAX_TEXT],
        "max_span_attributes": getattr(limits, "max_span_attributes", None),
    }


def worker_facts() -> dict[str, Any]:
    """Return the kind of worker that this process is, from its imported modules."""
    uwsgi: Any = sys.modules.get("uwsgi")
    return {"uwsgi_without_threads": uwsgi is not None and not {"enable-threads", "threads"} & set(uwsgi.opt)}
