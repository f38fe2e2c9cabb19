"""What the product logged while a test ran; other libraries may log at any time, on a busy machine above all."""

from __future__ import annotations

import logging

import pytest


def ours(caplog: pytest.LogCaptureFixture, level: int = logging.WARNING) -> list[str]:
    """Return the messages of the product's loggers, from a level on."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.name.partition(".")[0] == "otel_llm" and record.levelno >= level
    ]
