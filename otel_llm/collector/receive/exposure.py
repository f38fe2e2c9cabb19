"""Warnings at the start: listeners that others can reach, secret files that others can read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_llm.shared.web.exposure import exposure as exposure_of

if TYPE_CHECKING:
    from otel_llm.collector.settings import Settings
    from otel_llm.shared.web.address import Address


def exposure(settings: Settings, grpc: Address, http: Address, web: Address) -> list[str]:
    """Return warnings, one sentence each, on reachable listeners and readable secret files."""
    ports = (("--grpc", grpc), ("--http", http), ("--web", web))
    page = "docs/collector-operations.md"
    return exposure_of(ports, settings.tls, settings.auth, settings.secret_files(), page)
