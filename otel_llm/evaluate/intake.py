"""Make a batch ready for evaluation: bound what it may hold, and stamp it with the time of receipt.

The service, a restart, backtests and tests of rules take export requests in by these functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_llm.readers.otlp import export_request

if TYPE_CHECKING:
    from otel_llm.readers.batch import Batch
    from otel_llm.readers.spans.attributes import IntakeLimits

MAX_CHOICES: Final = 128
"""Streams of one request, numbered from 0; those of later choices are refused."""


def read_export(raw: bytes, receipt_ns: int, limits: IntakeLimits) -> Batch:
    """Decode an export request and take it in.

    `receipt_ns`: the time of receipt, unix ns.

    Raises:
        DecodeError: it is no export request.
    """
    batch = export_request.read(raw, limits=limits.attributes)
    take_in(batch, receipt_ns, limits)
    return batch


def take_in(batch: Batch, receipt_ns: int, limits: IntakeLimits) -> None:
    """Refuse what is beyond the limits, counted in `batch.refused`, and stamp the rest with the time of receipt."""
    batch.bound(segments=limits.segments_per_request, choices=MAX_CHOICES)
    batch.received(receipt_ns)
