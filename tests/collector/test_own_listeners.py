from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from otel_llm.collector.export.egress import refuse_own_listener
from otel_llm.config.errors import StartError
from otel_llm.config.otlp_target import OtlpTarget
from otel_llm.shared.web.address import Address


@pytest.fixture
def port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.mark.parametrize(
    ("host", "listener"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("localhost", "127.0.0.1"),
        ("127.0.0.1", "0.0.0.0"),
        ("127.0.0.2", "0.0.0.0"),
        ("[::ffff:127.0.0.1]", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1"),
        ("[::1]", "::"),
        ("127.0.0.1", "::"),
    ],
)
def test_our_own_listener_is_refused_under_every_name(host: str, listener: str, port: int) -> None:
    with pytest.raises(StartError, match="is this collector's own listener"):
        refuse_own_listener(
            OtlpTarget(endpoint=f"http://{host}:{port}"), [Address("127.0.0.1", port - 1), Address(listener, port)]
        )


@pytest.mark.parametrize(
    ("host", "listener", "off"),
    [
        ("127.0.0.1", "127.0.0.1", 1),
        ("127.0.0.2", "127.0.0.1", 0),
        ("192.0.2.1", "0.0.0.0", 0),  # TEST-NET-1: no host's
        ("no-such-host.invalid", "0.0.0.0", 0),
    ],
)
def test_others_are_not(host: str, listener: str, off: int, port: int) -> None:
    refuse_own_listener(OtlpTarget(endpoint=f"http://{host}:{port + off}"), [Address(listener, port)])
