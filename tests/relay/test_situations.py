"""A relay in every situation of the table: its client gets the backend's bytes, and its row is right."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import suppress
from urllib.parse import urlsplit

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.commands import wait_until
from support.instrumentation.situations import CHAT, SITUATIONS
from support.instrumentation.wire_server import WireServer
from support.otlp_receiver import HttpReceiver
from support.patience import WAIT_S
from support.relay.process import relay

from otel_llm import semconv


class Relayed:
    """A relay before one server, and what it records."""

    def __init__(self, url: str, backend: WireServer, received: HttpReceiver) -> None:
        self.address = urlsplit(url).netloc
        self.backend = backend
        self._received = received
        self._seen = 0

    def ask(self) -> bytes:
        """Return the body that a client gets, as far as it comes."""
        connection = http.client.HTTPConnection(self.address, timeout=WAIT_S)
        connection.request("POST", CHAT.path, json.dumps(CHAT.asks), {"Content-Type": "application/json"})
        response, got = connection.getresponse(), b""
        with suppress(http.client.IncompleteRead, ConnectionError):
            while data := response.read1(65_536):
                got += data
        connection.close()
        return got

    def row(self) -> tuple[object, object]:
        """Return the outcome and the tokens of the newest request."""
        requests: list[Span] = []

        def one_more() -> bool:
            requests[:] = [span for span in self._received.spans() if span.name != semconv.SEGMENT_SPAN]
            return len(requests) > self._seen

        wait_until("the request span", one_more)
        self._seen = len(requests)
        facts = {pair.key: pair.value for pair in requests[-1].attributes}
        return facts[semconv.OUTCOME].string_value, facts[semconv.TOKENS].int_value


@pytest.fixture(scope="module")
def relayed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relayed]:
    with WireServer() as backend, HttpReceiver() as received:
        config = tmp_path_factory.mktemp("relay") / "relay.yaml"
        config.write_text(f"version: 1\nbackends:\n  a: {{url: '{backend.url}', kind: openai}}\n")
        sent = {"OTEL_EXPORTER_OTLP_ENDPOINT": received.endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}
        with relay("--config", config, more=sent) as running:
            yield Relayed(running.url, backend, received)


@pytest.mark.parametrize("name", [name for name, one in SITUATIONS.items() if "chat" in one.apis])
def test_a_relay(name: str, relayed: Relayed) -> None:
    situation = SITUATIONS[name]
    lines = [line for line in situation.body(CHAT) if line]
    relayed.backend.pieces, relayed.backend.headers = lines, situation.headers
    got = relayed.ask()
    outcome, tokens = relayed.row()
    if situation.outcome == "completed":
        assert (got, outcome) == (b"".join(lines), "completed")
    else:  # a relay ends what broke off with an error event
        assert outcome == "error"
        assert b'"error"' in got
    assert tokens == situation.tokens
