"""Judge recorded streams offline: `load(*paths)` gives requests, windows, a summary and a report."""

from __future__ import annotations

from otel_llm.audit.input.load_inputs import BrokenRecordError, SeveralRunsError, load_streams
from otel_llm.audit.kernel.workers import WorkerError
from otel_llm.audit.load import Limits, load
from otel_llm.audit.result import Audit
from otel_llm.shared.outputs import OutputError

__all__ = [
    "Audit",
    "BrokenRecordError",
    "Limits",
    "OutputError",
    "SeveralRunsError",
    "WorkerError",
    "load",
    "load_streams",
]
