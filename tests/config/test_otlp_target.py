from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from otel_llm.config.otlp_target import Headers, OtlpTarget, Protocol


@pytest.mark.parametrize(
    ("endpoint", "protocol", "authority", "url"),
    [
        ("http://gateway:4317", "grpc", "gateway:4317", "http://gateway:4317/v1/traces"),
        ("https://[::1]:4317/", "grpc", "[::1]:4317", "https://[::1]:4317/v1/traces"),
        ("http://gateway", "http/protobuf", "gateway:80", "http://gateway/v1/traces"),
        ("https://api.example.com/otlp/", "http/protobuf", "api.example.com:443",
         "https://api.example.com/otlp/v1/traces"),
        ("https://api.example.com/v1/traces", "http/protobuf", "api.example.com:443",
         "https://api.example.com/v1/traces"),
    ],
)  # fmt: skip
def test_an_endpoint_is_a_url(endpoint: str, protocol: Protocol, authority: str, url: str) -> None:
    target = OtlpTarget(endpoint=endpoint, protocol=protocol)
    assert (target.authority, target.url("traces")) == (authority, url)
    assert target.tls == endpoint.startswith("https")


@pytest.mark.parametrize(
    ("endpoint", "says"),
    [
        ("gateway:4317", "is no endpoint: write for example http://gateway:4317"),
        ("", "at least 1 character"),
        ("ftp://gateway", "is no endpoint"),
        ("http://", "is no endpoint"),
        ("http://gateway:0", "is no endpoint"),
        ("http://gateway:99999", "is no endpoint"),
        ("http://gateway:4317/prefix", "says more than where to connect"),
        ("http://gateway:4317?x=1", "says more than where to connect"),
        ("http://user:secret@gateway:4317", "no credentials in an endpoint"),
        ("user:secret@gateway:4317", "is no endpoint"),
    ],
)
def test_what_is_none_is_refused_without_telling_secrets(endpoint: str, says: str) -> None:
    with pytest.raises(ValidationError, match=says) as refused:
        OtlpTarget(endpoint=endpoint)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("name", ["bad name", "", "trace-bin", "x:y", "ü"])
def test_a_header_that_cannot_be_sent_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValidationError, match="not a name that gRPC and HTTP can send"):
        OtlpTarget(endpoint="http://gateway:4317", headers=Headers(((name, "value"),)))


@pytest.mark.parametrize("value", ["", "sec\nret", "secrät", " secret"])
def test_a_header_value_that_cannot_be_sent_is_refused_and_not_told(value: str) -> None:
    with pytest.raises(ValidationError, match="header 'api-key' of http://gateway:4317") as refused:
        OtlpTarget(endpoint="http://gateway:4317", headers=Headers((("api-key", value),)))
    assert "sec" not in str(refused.value)


def test_headers_are_not_shown() -> None:
    target = OtlpTarget(endpoint="http://gateway:4317", headers=Headers((("Api-Key", "hidden"),)))
    assert "hidden" not in repr(target)
    assert target.metadata() == (("api-key", "hidden"),)


def test_certificates_are_read_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=r"ca\.pem: No such file"):
        OtlpTarget(endpoint="https://gateway:4317", ca_file=tmp_path / "ca.pem")


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, float("inf"), float("nan")])
def test_a_timeout_is_a_positive_number(timeout_s: float) -> None:
    with pytest.raises(ValidationError, match="not a positive number of seconds"):
        OtlpTarget(endpoint="http://gateway:4317", timeout_s=timeout_s)


def test_no_file_of_headers_may_be_reported(tmp_path: Path) -> None:
    section = {"endpoint": "http://gateway:4317", "headers_file": None}
    assert OtlpTarget.model_validate(section, context=tmp_path) == OtlpTarget(endpoint="http://gateway:4317")
