"""The settings file: what each key becomes, and what is said about those that are wrong."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from support.doors_tls import signed

from otel_llm.collector.config import (
    Auth,
    ForwardSettings,
    JournalSettings,
    Limits,
    MetricsSettings,
    OtlpOutSettings,
    Settings,
    Tls,
)
from otel_llm.collector.config_file import load_settings
from otel_llm.collector.otlp_out_target import OtlpTarget
from otel_llm.rules.yamlfile import ConfigError

MIB = 2**20
EVERY_KEY = """\
version: 1
limits:
  message_bytes: 1048576
  receiving_bytes: 2097152
  streams_in_flight: 10
  segments_per_request: 11
  attributes_per_span: 12
  attribute_chars: 130
  connections: 14
  concurrent_exports: 15
  queued_exports: 16
  body_seconds: 17
  header_seconds: 1.5
  idle_connection_seconds: 19
  drain_seconds: 20
journal:
  file_bytes: 4096
  file_seconds: 21
  fsync: always
  fsync_interval: 50ms
  compress: false
  retain_bytes: 8192
  retain_seconds: 3600
metrics: {instance_label: true, models: [m, n], instances: []}
tls: {certificate: server.pem, key: keys/server.key, client_ca: server.pem, web: server}
auth: {tokens_file: tokens, web: open}
cors: {origins: [https://a.example, 'http://localhost:3000']}
web: {hosts: [a.example]}
forward: {endpoint: 'https://b.example:4317', headers_file: headers, timeout: 3s, queue_bytes: 1048576}
otlp:
  metrics: {endpoint: 'http://c.example:4318', protocol: http/protobuf, interval: 1m, compression: none}
  windows: {endpoint: 'http://d.example', ca_file: server.pem}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    certificate, key = signed().pem
    (tmp_path / "keys").mkdir()
    (tmp_path / "server.pem").write_bytes(certificate)
    (tmp_path / "keys" / "server.key").write_bytes(key)
    (tmp_path / "tokens").write_text("a-token-of-this-test\n")
    (tmp_path / "headers").write_text("X-Scope: t1\n")
    return tmp_path


def load(folder: Path, text: str) -> Settings:
    path = folder / "collector.yaml"
    path.write_text(text)
    return load_settings(path)


def test_without_a_file_and_with_an_empty_one(folder: Path) -> None:
    assert load_settings(None) == Settings()
    assert load(folder, "version: 1\n") == Settings()


def test_every_key(folder: Path) -> None:
    assert load(folder, EVERY_KEY) == Settings(
        limits=Limits(
            message_bytes=MIB,
            receiving_bytes=2 * MIB,
            streams_in_flight=10,
            segments_per_request=11,
            attributes_per_span=12,
            attribute_chars=130,
            connections=14,
            concurrent_exports=15,
            queued_exports=16,
            body_s=17,
            header_s=1.5,
            idle_connection_s=19,
            drain_s=20,
        ),
        journal=JournalSettings(
            file_bytes=4096,
            file_s=21,
            fsync="always",
            fsync_interval_s=0.05,
            compress=False,
            retain_bytes=8192,
            retain_s=3600,
        ),
        metrics=MetricsSettings(instance_label=True, models=("m", "n"), instances=()),
        tls=Tls(folder / "server.pem", folder / "keys/server.key", folder / "server.pem", web="server"),
        auth=Auth(folder / "tokens", web="open"),
        cors_origins=frozenset({"https://a.example", "http://localhost:3000"}),
        web_hosts=frozenset({"a.example"}),
        forward=ForwardSettings(
            OtlpTarget("https://b.example:4317", "grpc", (("x-scope", "t1"),), "gzip", 3.0), queue_bytes=MIB
        ),
        otlp_metrics=OtlpOutSettings(
            OtlpTarget("http://c.example:4318", "http/protobuf", compression="none"), interval_s=60
        ),
        otlp_windows=OtlpOutSettings(OtlpTarget("http://d.example", ca_file=folder / "server.pem")),
    )


def test_the_text_above_has_every_key_there_is(folder: Path) -> None:
    """A key that is added to the settings is added here."""
    said = set(re.findall(r"[a-z_]+(?=:)", EVERY_KEY))
    for part in (Limits, JournalSettings, MetricsSettings, Tls, Auth):
        for field in dataclasses.fields(part):
            name = {"fsync_interval_s": "fsync_interval"}.get(field.name, re.sub(r"_s$", "_seconds", field.name))
            assert name in said


@pytest.mark.parametrize(
    ("text", "place", "says"),
    [
        ("limits: {message_bites: 1}", "2:10: limits.message_bites", "did you mean message_bytes"),
        ("limits: {message_bytes: 1023}", "2:25: limits.message_bytes", "greater than or equal to 1024"),
        ("limits: {message_bytes: '1048576'}", "2:25: limits.message_bytes", "not a whole number"),
        ("limits: {message_bytes: 2097152, receiving_bytes: 1048576}", "2:9: limits", "let one message fit"),
        ("limits: {connections: 0}", "2:23: limits.connections", "greater than or equal to 1"),
        ("limits: {drain_seconds: 0}", "2:25: limits.drain_seconds", "greater than 0"),
        ("limits: {drain_seconds: true}", "2:25: limits.drain_seconds", "number"),
        ("journal: {fsync: sometimes}", "2:18: journal.fsync", "'always', 'interval' or 'never'"),
        ("journal: {fsync_interval: 0}", "2:27: journal.fsync_interval", "longer than zero"),
        ("journal: {fsync_interval: 5 parsecs}", "2:27: journal.fsync_interval", "300ms"),
        ("metrics: {models: m}", "2:19: metrics.models", "not a list"),
        ("metrics: {models: ['']}", "2:20: metrics.models[0]", "an empty name"),
        ("tls: {certificate: server.pem}", "2:6: tls.key", "missing"),
        ("tls: {certificate: nowhere.pem, key: keys/server.key}", "2:20: tls.certificate", "nowhere.pem: No such file"),
        ("tls: {certificate: tokens, key: keys/server.key}", "2:20: tls.certificate", "not a PEM file"),
        ("tls: {certificate: server.pem, key: server.pem}", "2:20: tls.certificate", "server.pem with"),
        ("tls: {certificate: server.pem, key: keys/server.key, client_ca: x}", "2:65: tls.client_ca", "No such file"),
        (
            "tls: {certificate: server.pem, key: keys/server.key, web: no}",
            "2:59: tls.web",
            "'same', 'server' or 'none'",
        ),
        ("auth: {tokens_file: nowhere}", "2:21: auth.tokens_file", "nowhere: No such file"),
        ("auth: {}", "2:7: auth.tokens_file", "missing"),
        ("cors: {origins: ['*']}", "2:18: cors.origins[0]", "is no origin"),
        ("cors: {origins: [https://a.example/]}", "2:18: cors.origins[0]", "is no origin"),
        ("cors: {origins: [https://A.example]}", "2:18: cors.origins[0]", "in lower case"),
        ("cors: {origins: [a.example]}", "2:18: cors.origins[0]", "is no origin"),
        ("cors: {origins: ['null']}", "2:18: cors.origins[0]", "is no origin"),
        ("web: {hosts: ['a.example:80']}", "2:15: web.hosts[0]", "without a port"),
        ("forward: {endpoint: b.example}", "2:21: forward.endpoint", "is no endpoint"),
        ("forward: {endpoint: 'ftp://b.example'}", "2:21: forward.endpoint", "is no endpoint"),
        ("forward: {endpoint: 'http://u:p@b.example'}", "2:21: forward.endpoint", "no credentials"),
        ("forward: {endpoint: 'http://b', protocol: http/json}", "2:43: forward.protocol", "'http/protobuf'"),
        ("forward: {endpoint: 'http://b', headers_file: nowhere}", "2:47: forward.headers_file", "No such file"),
        ("otlp: {windows: {endpoint: 'x'}}", "2:28: otlp.windows.endpoint", "is no endpoint"),
        ("otlp: {traces: {}}", "2:8: otlp.traces", "did you mean metrics?"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(folder: Path, text: str, place: str, says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(folder, f"version: 1\n{text}\n")
    assert str(raised.value).startswith(f"{folder / 'collector.yaml'}:{place}: ")
    assert says in str(raised.value)
    assert "u:p" not in str(raised.value)


def test_a_wrong_line_in_a_file_that_is_named_is_said_with_its_own_place(folder: Path) -> None:
    (folder / "tokens").write_text("# who\nsecret token\n")
    with pytest.raises(ConfigError, match=r"tokens:2:1: not a bearer token") as raised:
        load(folder, "version: 1\nauth: {tokens_file: tokens}\n")
    assert "secret" not in str(raised.value)
    (folder / "headers").write_text("secret header\n")
    with pytest.raises(ConfigError, match=r"headers:1:1: not a header") as raised:
        load(folder, "version: 1\nforward: {endpoint: 'http://b', headers_file: headers}\n")
    assert "secret" not in str(raised.value)


def test_secrets_are_not_shown(folder: Path) -> None:
    (folder / "headers").write_text("authorization: Bearer xyzzy\n")
    settings = load(folder, EVERY_KEY)
    assert settings.forward is not None
    assert settings.forward.target.headers == (("authorization", "Bearer xyzzy"),)
    assert "xyzzy" not in repr(settings)


def test_the_defaults_are_those_of_the_settings(folder: Path) -> None:
    """Naming a section changes nothing of what it leaves out."""
    assert load(folder, "version: 1\nlimits: {}\njournal: {}\nmetrics: {}\nweb: {}\notlp: {}\n") == Settings()
