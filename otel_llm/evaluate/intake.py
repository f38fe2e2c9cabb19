"""The intake of batches: limits, and the receipt time.

The service, restarts, backtests and unit tests of rules use these functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_llm.readers.otlp import export_request

if TYPE_CHECKING:
    from otel_llm.readers.batch import Batch
    from otel_llm.readers.spans.attributes import IntakeLimits

MAX_CHOICES: Final = 128
"""Streams of one request, numbered from 0; later choices are refused."""


def read_export(raw: bytes, receipt_ns: int, limits: IntakeLimits) -> Batch:
    """Decode an export request, and take it in.

    `receipt_ns`: the receipt time, unix ns.

    Raises:
        DecodeError: it is no export request.
    """
    batch = export_request.read(raw, limits=limits.attributes)
    take_in(batch, receipt_ns, limits)
    return batch


def take_in(batch: Batch, receipt_ns: int, limits: IntakeLimits) -> None:
    """Refuse segments and choices beyond the limits, counted in `batch.refused`; stamp the others with `receipt_ns`."""
    batch.bound(segments=limits.segments_per_request, choices=MAX_CHOICES)
    batch.received(receipt_ns)
