"""Start the recorder from outside, as `opentelemetry-instrument` does, but with our own hooks only.

No TracerProvider is made: the program's own would be refused afterwards. If the program calls `instrument` itself, its
settings replace ours.
"""

from __future__ import annotations

from typing import Any

from otel_llm.instrumentation import setup


def inject() -> None:
    """Record this process until it chooses its own settings."""
    instrument = setup.instrument
    instrument()

    def own(**settings: Any) -> None:
        setup.instrument = instrument
        setup.uninstrument()
        instrument(**settings)

    setup.instrument = own
