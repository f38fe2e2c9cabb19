"""A recorder whose segments stay in memory, and a server to stream from."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.instrumentation.one_authority import write_one_authority
from support.instrumentation.recorded import Recorded
from support.sse_server import SseServer

import otel_llm


@pytest.fixture(scope="session")
def one_authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_one_authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(autouse=True)
def trusts_one_authority(one_authority: Path) -> Iterator[None]:
    # No server here speaks TLS.
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SSL_CERT_FILE", str(one_authority))
        yield


@pytest.fixture
def own_garbage() -> None:
    """Collect the garbage of earlier tests: a socket in it warns, and a test that collects would fail for it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()


@pytest.fixture
def server() -> Iterator[SseServer]:
    with SseServer() as running:
        yield running


@pytest.fixture
def recorder() -> Iterator[Recorded]:
    exporter = InMemorySpanExporter()
    otel_llm.instrument(exporter=exporter)
    yield Recorded(exporter)
    otel_llm.uninstrument()
