"""The standard variables are read as the standard exporters read them: asked of both, answered alike."""

from __future__ import annotations

import logging
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk._configuration import _get_exporter_entry_point
from support.ports import free_ports

from otel_llm.export.settings import EXIT_TIMEOUT_VARIABLE, exit_timeout_s, from_environment
from otel_llm.export.transport.http import HttpSender

ENDPOINTS = [None, "http://c:4317", "https://c:4317", "http://c:4318/", "http://c:4318/base", "c:4317", "localhost:1"]
HEADERS = [None, "a=b", "A=b,c=d%20e", "x-key=a=b==", " spaced = yes "]
TIMEOUTS = [None, "3", "0.5"]
COMPRESSIONS = [None, "gzip"]
BOOLEANS = [None, "true", "True", "false"]


def pairs(name: str, choices: list[Any]) -> dict[str, Any]:
    options = st.sampled_from(choices)
    return {f"OTEL_EXPORTER_OTLP_{name}": options, f"OTEL_EXPORTER_OTLP_TRACES_{name}": options}


environments = st.fixed_dictionaries(
    {
        **pairs("ENDPOINT", ENDPOINTS),
        **pairs("HEADERS", HEADERS),
        **pairs("TIMEOUT", TIMEOUTS),
        **pairs("COMPRESSION", COMPRESSIONS),
        **pairs("INSECURE", BOOLEANS),
    }
).map(lambda environment: {key: value for key, value in environment.items() if value is not None})


@given(environment=environments)
def test_grpc_is_set_up_like_the_standard_exporter(environment: dict[str, str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for key, value in environment.items():
            patch.setenv(key, value)
        theirs: Any = GrpcExporter()
    theirs._channel.close()
    ours = from_environment({**environment, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
    assert (ours.endpoint, ours.insecure) == (theirs._endpoint, theirs._insecure)
    assert ours.headers == theirs._headers
    assert ours.timeout_s == theirs._timeout
    assert (ours.compression == "gzip") == (theirs._compression == grpc.Compression.Gzip)


@given(environment=environments)
def test_http_is_set_up_like_the_standard_exporter(environment: dict[str, str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for key, value in environment.items():
            patch.setenv(key, value)
        theirs: Any = HttpExporter()
    theirs.shutdown()
    ours = from_environment({**environment, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"})
    assert ours.endpoint == theirs._endpoint
    assert ours.timeout_s == theirs._client._timeout
    assert ours.compression == theirs._compression.value
    headers = dict(theirs._client._headers)
    for name in ("content-type", "user-agent", "Content-Encoding"):
        headers.pop(name, None)
    assert dict(ours.headers) == headers


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"},
        {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"},
        {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": " http/protobuf "},
    ],
)
def test_the_protocol_is_the_one_that_the_sdk_would_choose(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    theirs = {"otlp_proto_grpc": "grpc", "otlp_proto_http": "http/protobuf"}[
        _get_exporter_entry_point("otlp", "traces")
    ]
    assert from_environment(environment).protocol == theirs


def test_certificates() -> None:
    settings = from_environment(
        {
            "OTEL_EXPORTER_OTLP_CERTIFICATE": "ca.pem",
            "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE": "traces.pem",
            "OTEL_EXPORTER_OTLP_CLIENT_KEY": "key.pem",
            "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": "client.pem",
        }
    )
    assert (settings.certificate, settings.client_key, settings.client_certificate) == (
        "traces.pem",
        "key.pem",
        "client.pem",
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "nan"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "-1"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "brotli"),
    ],
)
def test_a_value_that_cannot_be_used_is_warned_of_and_unset(
    key: str, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "otel_llm"):
        assert from_environment({key: value}) == from_environment({})
    assert key in caplog.text
    assert value in caplog.text


@pytest.mark.parametrize(
    ("protocol", "endpoint", "words"),
    [
        ("grpc", "http://a:4317", "a:4317 over grpc"),
        ("grpc", "http://a:4318", "a:4318 over grpc (this port is usually that of http/protobuf: is OTEL_"),
        ("http/protobuf", "http://a:4318", "http://a:4318/v1/traces over http/protobuf"),
        (
            "http/protobuf",
            "http://a:4317",
            "http://a:4317/v1/traces over http/protobuf (this port is usually that of grpc",
        ),
        ("http/protobuf", "https://a.example", "https://a.example/v1/traces over http/protobuf"),
    ],
)
def test_the_words_of_an_endpoint_tell_where_it_is_and_a_port_that_is_the_other_protocols(
    protocol: str, endpoint: str, words: str
) -> None:
    found = from_environment(
        {"OTEL_EXPORTER_OTLP_PROTOCOL": protocol, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}
    ).description
    assert found.startswith(words)
    assert ("usually" in found) == ("usually" in words)


@pytest.mark.parametrize(
    ("protocol", "endpoint", "shown"),
    [
        ("grpc", "http://user:SECRET@a:4317", "a:4317"),
        ("grpc", "user:SECRET@a:4317", "a:4317"),
        ("http/protobuf", "https://user:SEC@RET@a/base", "https://a/base/v1/traces"),
        ("http/protobuf", "http://a:4318", "http://a:4318/v1/traces"),
        ("http/protobuf", "http://a:4318/base?key=SECRET", "http://a:4318/base"),
        ("http/protobuf", "http://user:SECRET@a:4318/base#SECRET", "http://a:4318/base"),
        ("http/protobuf", "http://a:4318/base?key=SEC@RET", "http://…"),
        ("http/protobuf", "http://user:SEC?RET@a:4318", "http://…"),
    ],
)
def test_credentials_of_an_endpoint_are_not_shown(protocol: str, endpoint: str, shown: str) -> None:
    found = from_environment({"OTEL_EXPORTER_OTLP_PROTOCOL": protocol, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint})
    assert (found.shown, found.description) == (shown, f"{shown} over {protocol}")


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:{}/base?key=SECRET", "http://u:SECRET@127.0.0.1:{}"])
def test_credentials_are_not_in_the_reason_of_a_failure(endpoint: str) -> None:
    [nothing] = free_ports(1)
    settings = from_environment(
        {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": endpoint.format(nothing)}
    )
    attempt = HttpSender(settings).send(b"")
    assert (attempt.verdict, attempt.reason) == ("retry", "ConnectionError")


@pytest.mark.parametrize(
    ("stated", "seconds"),
    [
        (None, 2.0),
        ("", 2.0),
        ("0.5", 0.5),
        ("0", 0.0),
        ("30", 30.0),
        ("soon", 2.0),
        ("nan", 2.0),
        ("inf", 2.0),
        ("-1", 2.0),
    ],
)
def test_how_long_an_ending_process_waits(stated: str | None, seconds: float, caplog: pytest.LogCaptureFixture) -> None:
    assert exit_timeout_s({} if stated is None else {EXIT_TIMEOUT_VARIABLE: stated}) == seconds
    assert len(caplog.records) == (stated in {"soon", "nan", "inf", "-1"})


@pytest.mark.parametrize("key", ["OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"])
def test_a_header_that_cannot_be_read_is_warned_of_without_its_text(key: str, caplog: pytest.LogCaptureFixture) -> None:
    assert from_environment({key: "a=b,Bearer SECRET"}).headers == (("a", "b"),)
    assert [(record.name, key in record.getMessage()) for record in caplog.records] == [("otel_llm", True)]
    assert "SECRET" not in caplog.text
