"""Recorded streams, judged offline: `load(*paths)` gives requests, windows, a summary and a report."""

from __future__ import annotations

from otel_llm.audit.load import load
from otel_llm.audit.result import Audit
from otel_llm.audit.write import OutputError

__all__ = ["Audit", "OutputError", "load"]
