"""A recorder that fails a test whose recordings outlive their requests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.instrumentation.recorded import Recorded

from otel_llm.instrumentation.process import runtime


@pytest.fixture
def recorder(recorder: Recorded) -> Iterator[Recorded]:
    """Assert at a test's end, when no request is served any more, that every recording that began has ended."""
    yield recorder
    if (running := runtime.running()) is not None:
        recorder.spans()  # which ends those whose reply was collected
        counts = running.stats.snapshot()
        assert counts["begun"] == counts["ended"], "a recording outlives its request"
