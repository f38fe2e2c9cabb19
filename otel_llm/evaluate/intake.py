"""The intake of batches: limits, and the receipt time.

The service, restarts, backtests and unit tests of rules use these functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_llm import semconv
from otel_llm.formats.otlp import export_request
from otel_llm.formats.records import DEFAULT_TENANT

if TYPE_CHECKING:
    from otel_llm.formats.batch import Batch
    from otel_llm.formats.spans.attributes import IntakeLimits


def read_export(raw: bytes, receipt_ns: int, limits: IntakeLimits, tenant: str | None = None) -> Batch:
    """Decode an export request, and take it in.

    `receipt_ns`: the receipt time, unix ns; `tenant`: its sender's, None if senders have no tokens.

    Raises:
        DecodeError: it is no export request.
    """
    batch = export_request.read(raw, limits=limits.attributes)
    take_in(batch, receipt_ns, limits, tenant)
    return batch


def take_in(batch: Batch, receipt_ns: int, limits: IntakeLimits, tenant: str | None = None) -> None:
    """Refuse segments and choices beyond the limits, counted in `batch.refused`; stamp the others with time and tenant.

    `receipt_ns`, `tenant`: as for `read_export`.
    """
    batch.bound(segments=limits.segments_per_request, choices=semconv.MAX_CHOICES)
    batch.received(receipt_ns)
    batch.owned_by(DEFAULT_TENANT if tenant is None else tenant)
