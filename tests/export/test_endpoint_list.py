"""The list of several collectors: names that every process agrees on, and typed errors that repeat no secret."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_llm.export.endpoints import ENDPOINTS_VARIABLE, EndpointsError, listed_settings, usable_settings
from otel_llm.export.settings import OtlpSettings, from_environment

GRPC = {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
HTTP = {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}


def listed(text: str, environment: dict[str, str] = GRPC) -> dict[str, OtlpSettings]:
    return listed_settings({**environment, ENDPOINTS_VARIABLE: text})


def test_without_a_list_the_standard_variables_say_where() -> None:
    for unset in ({}, {ENDPOINTS_VARIABLE: ""}, {ENDPOINTS_VARIABLE: " "}):
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:4317", **unset}
        assert list(listed_settings(environment).values()) == [from_environment(environment)]


def test_over_grpc_the_scheme_says_whether_there_is_tls() -> None:
    found = listed("http://a:4317, http://B:4317/")
    assert {name: (one.endpoint, one.insecure) for name, one in found.items()} == {
        "http://a:4317": ("a:4317", True),
        "http://b:4317": ("B:4317", True),
    }
    stated = {**GRPC, "OTEL_EXPORTER_OTLP_INSECURE": "true"}  # of endpoints without a scheme alone
    assert [one.insecure for one in listed("https://a:4317,https://b", stated).values()] == [False, False]
    assert [one.endpoint for one in listed("https://a,https://[::1]").values()] == ["a:443", "[::1]:443"]


def test_over_http_each_url_gets_the_path_of_traces() -> None:
    found = listed("http://a:4318,http://a:4318/Two/,http://b", HTTP)
    assert {name: one.endpoint for name, one in found.items()} == {
        "http://a:4318": "http://a:4318/v1/traces",
        "http://a:4318/Two": "http://a:4318/Two/v1/traces",
        "http://b:80": "http://b:80/v1/traces",
    }


def test_all_else_is_that_of_the_standard_variables_and_wins_over_their_endpoint() -> None:
    environment = {
        **HTTP,
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://backend:4318/v1/traces",
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=x",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "3",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
        "OTEL_EXPORTER_OTLP_CERTIFICATE": "ca.pem",
    }
    for one in listed("https://a:4318,https://b:4318", environment).values():
        assert one.headers == (("authorization", "x"),)
        assert (one.timeout_s, one.compression, one.certificate) == (3.0, "gzip", "ca.pem")
        assert "backend" not in one.endpoint


WRONG = [
    ("http://a:1,,http://b:1", "entry 2 is empty: separate URLs by one comma"),
    ("http://a:1,", "entry 2 is empty"),
    (",", "entry 1 is empty"),
    ("http://a:1,http://b:1,http://a:1", "entry 3 is http://a:1 again: name each collector once"),
    ("http://a:1,http://A:1/", "entry 2 is http://a:1 again"),
    ("https://a,https://a:443", "entry 2 is https://a:443 again"),
    ("https://a:,https://a", "entry 2 is https://a:443 again"),
    ("http://[::1]:04317,http://[::1]:4317", "entry 2 is http://[::1]:4317 again"),
    ("http://a:1,https://b:1", "some entries are http, some https: use one of them"),
    ("a:4317,b:4317", "entry 1 is no URL: write http://HOST:PORT or https://HOST:PORT"),
    ("http://a:1,grpc://b:1", "entry 2 is no URL"),
    ("http://a:1,http://:1", "entry 2 is no URL"),
    ("http://a:1,http://b:port", "entry 2 is no URL"),
    ("http://a:1,http://b:65536", "entry 2 is no URL"),
    ("http://a:1,http://b:0", "entry 2 is no URL"),
    ("http://a:1,http://[::1", "entry 2 is no URL"),
    ("http://a:1 http://b:1", "entry 1 is no URL"),
    ("http://a:1,http://u:SECRET@b:1", "entry 2 has credentials: put them into OTEL_EXPORTER_OTLP_HEADERS"),
    ("http://a:1,http://b:1/base", "entry 2 has more than a host and a port"),
    ("http://a:1,http://b:1?tenant=1", "entry 2 has more than a host and a port"),
]


@pytest.mark.parametrize(("text", "words"), WRONG)
def test_a_wrong_list_is_refused_with_entry_and_remedy(text: str, words: str) -> None:
    with pytest.raises(EndpointsError) as refused:
        listed(text)
    assert str(refused.value).startswith(f"{ENDPOINTS_VARIABLE}: {words}")
    assert "SECRET" not in str(refused.value)


@pytest.mark.parametrize(("text", "words"), WRONG)
def test_an_application_goes_on_with_one_endpoint_and_a_warning(
    text: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://one:4317"}
    with caplog.at_level(logging.WARNING, "otel_llm"):
        found = usable_settings({**environment, ENDPOINTS_VARIABLE: text})
    assert list(found.values()) == [from_environment(environment)]
    assert [record.getMessage().startswith(f"{ENDPOINTS_VARIABLE}: {words}") for record in caplog.records] == [True]
    assert "one:4317" in caplog.text
    assert "SECRET" not in caplog.text


@given(st.text(alphabet="htps:/a1.,@?#[] %\x00\n\u00e9", max_size=40), st.sampled_from([GRPC, HTTP]))
def test_any_list_gives_distinct_endpoints_or_a_typed_error(text: str, protocol: dict[str, str]) -> None:
    try:
        found = listed(text, protocol)
    except EndpointsError:
        return
    endpoints = [one.endpoint for one in found.values()]
    assert len(set(endpoints)) == len(endpoints) >= 1


def test_the_list_in_the_docs_is_one() -> None:
    page = (Path(__file__).parents[2] / "docs" / "several-collectors.md").read_text(encoding="utf-8")
    [text] = re.findall(rf"^    export {ENDPOINTS_VARIABLE}=(\S+)$", page, re.MULTILINE)
    assert list(listed(text)) == [f"http://otel-llm-{number}:4317" for number in range(3)]
