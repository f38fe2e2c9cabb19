"""The relay's settings file and `--backend`: what each key becomes, and what is said about those that are wrong."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from support.collector.tls_files import authority, signed

from otel_llm.config.errors import StartError
from otel_llm.config.sections import Cors, DecisionSettings, MetricsSettings, Operators, Web
from otel_llm.config.tls import Tls
from otel_llm.config.yaml_file import ConfigError
from otel_llm.relay.settings import (
    BackendSettings,
    Drain,
    Eject,
    Failover,
    Health,
    Limits,
    Preempt,
    Queue,
    RelayAuth,
    RelaySettings,
    load_settings,
    parse_backend,
)
from otel_llm.scheduling import load_profile
from otel_llm.scheduling.placement import POLICIES

MIB = 2**20
EVERY_KEY = """\
version: 1
backends:
  a: {url: 'http://10.0.0.1:8000/', profile: h200-paper-era}
  b.c_d-1: {url: 'https://[::1]:8443/base', kind: sglang, api_key_file: key, ca: ca.pem, group: g}
  10.0.0.3:80: {url: 'http://10.0.0.3', kind: openai, profile: mine.yaml}
placement: spread
queue: {in_flight: 6, order: edf, max_waiting: 9, max_wait: 1m}
preempt: {resume_runway: 3s, calm: 500ms, max_paused: 7}
failover: {connect_retries: 0, resume: false, first_byte: 1m, hedge_after: 2s, hedge_share: 0.5}
health: {path: '/health?deep=1', interval: 500ms, timeout: 2s}
eject: {for: 1m, max_share: 0.25}
drain: {migrate: true}
limits:
  body_bytes: 1024
  receiving_bytes: 4096
  streams: 2
  choices: 9
  connections: 3
  connections_per_peer: 6
  metrics_bytes: 1048577
  viewers: 7
  header_seconds: 0.5
  body_seconds: 3
  idle_connection_seconds: 4
  client_stall_seconds: 6
  drain_seconds: 5
tls: {certificate: server.pem, key: server.key, client_ca: ca.pem, web: none}
auth: {tokens_file: key, web: open, classes: {a: [chat, code]}}
operators: {tokens_file: operators}
cors: {origins: ['https://chat.example']}
passthrough: [/rerank, '/Inference//v1/*']
web: {hosts: [Relay.example]}
actions: {secret_file: signing, kill_switch: off}
decisions: {file_bytes: 4097, retain_bytes: 8193}
metrics: {instance_label: false, models: [m], instances: [a]}
"""
PROFILE = """\
version: 1
model: m
accelerator: a
engine: e
kv_tokens: 10000
max_batch: 8
max_batched_tokens: 512
source: a test
linear: {base: 5ms, per_decode: 1ms, per_kv_token: 10us}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pair, ca = signed(), authority()
    (tmp_path / "server.pem").write_bytes(pair.certificate.read_bytes())
    (tmp_path / "server.key").write_bytes(pair.key.read_bytes())
    (tmp_path / "ca.pem").write_bytes(ca.certificate.read_bytes())
    (tmp_path / "key").write_text("a-key-of-this-test\n")
    (tmp_path / "operators").write_text("an-operator-of-this-test\n")
    (tmp_path / "signing").write_text("whsec_" + base64.b64encode(bytes(32)).decode() + "\n")
    (tmp_path / "empty").write_text("# nothing\n")
    (tmp_path / "other").write_text("a key with spaces\n")
    (tmp_path / "mine.yaml").write_text(PROFILE)
    (tmp_path / "odd.yaml").write_text(PROFILE.replace("kv_tokens: 10000", "kv_tokens: 0"))
    return tmp_path


def loaded(folder: Path, text: str, *backends: str) -> RelaySettings:
    (folder / "relay.yaml").write_text(text)
    return load_settings(folder / "relay.yaml", backends)


def test_every_key(folder: Path) -> None:
    found = loaded(folder, EVERY_KEY, "z=http://10.0.0.9:1/")
    assert list(found.backends.values()) == [
        BackendSettings(name="a", url="http://10.0.0.1:8000", profile=load_profile("h200-paper-era")),
        BackendSettings(
            name="b.c_d-1",
            url="https://[::1]:8443/base",
            kind="sglang",
            group="g",
            api_key_file=folder / "key",
            ca=folder / "ca.pem",
        ),
        BackendSettings(
            name="10.0.0.3:80", url="http://10.0.0.3", kind="openai", profile=load_profile(folder / "mine.yaml")
        ),
        BackendSettings(name="z", url="http://10.0.0.9:1"),
    ]
    assert list(found.backends) == [one.name for one in found.backends.values()]
    assert found.placement == "spread"
    assert found.queue == Queue(in_flight=6, order="edf", max_waiting=9, max_wait_s=60.0)
    assert found.failover == Failover(
        connect_retries=0, resume=False, first_byte_s=60.0, hedge_after_s=2.0, hedge_share=0.5
    )
    assert found.preempt == Preempt(resume_runway_s=3.0, calm_s=0.5, max_paused=7)
    assert found.health == Health(path="/health?deep=1", interval_s=0.5, timeout_s=2.0)
    assert (found.eject, found.drain) == (Eject(for_s=60.0, max_share=0.25), Drain(migrate=True))
    assert found.limits == Limits(
        body_bytes=1024,
        receiving_bytes=4096,
        streams=2,
        choices=9,
        connections=3,
        connections_per_peer=6,
        metrics_bytes=1048577,
        viewers=7,
        header_s=0.5,
        body_s=3,
        idle_connection_s=4,
        client_stall_s=6,
        drain_s=5,
    )
    assert found.tls == Tls(
        certificate=folder / "server.pem", key=folder / "server.key", client_ca=folder / "ca.pem", web="none"
    )
    assert found.auth == RelayAuth(tokens_file=folder / "key", web="open", classes={"a": ("chat", "code")})
    assert found.operators == Operators(tokens_file=folder / "operators")
    assert found.cors == Cors(origins=("https://chat.example",))
    assert found.passthrough == ("/rerank", "/inference/v1/*")
    assert found.web == Web(hosts=("relay.example",))
    assert found.actions.secret_file == folder / "signing"
    assert found.actions.kill_switch == folder / "off"
    assert found.decisions == DecisionSettings(file_bytes=4097, retain_bytes=8193)
    assert found.metrics == MetricsSettings(instance_label=False, models=("m",), instances=("a",))


def test_absent_keys_are_the_defaults_of_the_contract(folder: Path) -> None:
    found = loaded(folder, "version: 1\n", "http://h:1")
    assert found.model_copy(update={"backends": {}}) == RelaySettings()
    assert found.failover == Failover(
        connect_retries=2, resume=True, first_byte_s=60.0, hedge_after_s=None, hedge_share=0.05
    )
    assert found.health == Health(path="/health", interval_s=1.0, timeout_s=1.0)
    assert (found.eject, found.drain.migrate, found.placement) == (Eject(for_s=5.0, max_share=0.5), False, "least_load")
    assert (found.limits.body_bytes, found.limits.streams) == (32 * MIB, 4096)


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_policy_can_be_chosen(folder: Path, name: str) -> None:
    assert loaded(folder, f"version: 1\nplacement: {name}\n", "http://h:1").placement == name


@pytest.mark.parametrize(
    ("text", "place", "reported"),
    [
        ("backend: {a: {url: 'http://h'}}", "2:1: backend", "unknown key (did you mean backends?)"),
        ("backends: {a: {uri: 'http://h'}}", "2:16: backends.a.uri", "unknown key (did you mean url?)"),
        ("backends: {a: {kind: vllm}}", "backends.a.url", "missing"),
        ("backends: [a]", "2:11: backends", "not a mapping"),
        ("backends: {a: 'http://h'}", "2:15: backends.a", "not a mapping"),
        ("backends: {a/b: {url: 'http://h'}}", "backends.a/b", "letters, digits, dot, underscore and hyphen"),
        ("backends: {'': {url: 'http://h'}}", "backends", "letters, digits, dot, underscore and hyphen"),
        ("backends: {'<b>': {url: 'http://h'}}", "backends.<b>", "letters, digits, dot, underscore and hyphen"),
        ("backends: {a: {url: 'ftp://h'}}", "2:21: backends.a.url", "write for example"),
        ("backends: {a: {url: 'http://h:0'}}", "2:21: backends.a.url", "write for example"),
        ("backends: {a: {url: 'http://h:65536'}}", "2:21: backends.a.url", "write for example"),
        ("backends: {a: {url: 'http:///x'}}", "2:21: backends.a.url", "write for example"),
        ("backends: {a: {url: 'http://u:p@h'}}", "2:21: backends.a.url", "credentials in a URL"),
        ("backends: {a: {url: 'http://h?x=1'}}", "2:21: backends.a.url", "query"),
        ("backends: {a: {url: 'http://h#x'}}", "2:21: backends.a.url", "fragment"),
        ("backends: {a: {url: 'http://[::1'}}", "2:21: backends.a.url", "write for example"),
        ("backends: {a: {url: 'http://h/v1/'}}", "2:21: backends.a.url", "leave /v1 out"),
        ("backends: {a: {url: 8000}}", "2:21: backends.a.url", "not a string"),
        ("backends: {a: {url: 'http://h', kind: tgi}}", "backends.a.kind", "'vllm', 'sglang' or 'openai'"),
        ("backends: {a: {url: 'http://h', group: 1}}", "backends.a.group", "not a string"),
        ("backends: {a: {url: 'http://h', api_key_file: nokey}}", "backends.a.api_key_file", "name a file that can be"),
        ("backends: {a: {url: 'http://h', ca: nokey}}", "backends.a.ca", "name a file that can be read"),
        (
            "backends: {a: {url: 'http://h', profile: h100}}",
            "2:42: backends.a.profile",
            "known: cpu-tiny, h100-llama-3.1-8b",
        ),
        ("backends: {a: {url: 'http://h', profile: no.yaml}}", "2:42: backends.a.profile", "name a file that can be"),
        ("placement: fullest", "2:12: placement", "known are least_load, spread, pack, safest, round_robin, random, "),
        ("placement: polyserve", "2:12: placement", "polyserve needs a profile of every backend, and h:1 has none"),
        ("placement: [pack]", "2:12: placement", "not a string"),
        ("queue: {}", "2:8: queue.in_flight", "write how many requests a backend has at one time"),
        ("queue: {in_flight: 0}", "2:20: queue.in_flight", ""),
        ("queue: {order: edf}", "2:8: queue.in_flight", "missing"),
        ("queue: {in_flight: 1, order: lifo}", "2:30: queue.order", "known are fcfs, edf, sjf, anneal"),
        ("queue: {in_flight: 1, max_waiting: -1}", "queue.max_waiting", ""),
        ("queue: {in_flight: 1, max_wait: 0s}", "queue.max_wait", "longer than zero"),
        ("queue: {in_flight: 1, max_waits: 1s}", "queue.max_waits", "did you mean max_wait"),
        ("queue: {in_flight: 1, order: sjf}", "2:30: queue.order", "profile of every backend, and h:1 has none"),
        ("queue: {in_flight: 1, order: anneal}", "2:30: queue.order", "write under backends, for example"),
        ("failover: {connect_retries: -1}", "failover.connect_retries", ""),
        ("failover: {hedge_share: 2}", "failover.hedge_share", ""),
        ("failover: {hedge_after: soon}", "failover.hedge_after", "500us"),
        ("failover: {connect_retries: true}", "failover.connect_retries", "not a whole number"),
        ("failover: {resume: 'yes'}", "failover.resume", ""),
        ("failover: {first_byte: 60 s}", "failover.first_byte", "500us"),
        ("preempt: {resume_runway: soon}", "2:26: preempt.resume_runway", "500us"),
        ("preempt: {calm: 0s}", "2:17: preempt.calm", "longer than zero"),
        ("preempt: {max_paused: -1}", "2:23: preempt.max_paused", ""),
        ("preempt: {max_pause: 1}", "2:11: preempt.max_pause", "did you mean max_paused?"),
        ("drain: {migrate: maybe}", "2:18: drain.migrate", ""),
        ("health: {interval: 0s}", "health.interval", "longer than zero"),
        ("health: {timeout: -1}", "health.timeout", ""),
        ("health: {path: health}", "health.path", "write for example /health"),
        ("health: {path: '/a b'}", "health.path", "write for example /health"),
        ("eject: 5s", "2:8: eject", ""),
        ("eject: {for: never}", "2:14: eject.for", "500us"),
        ("eject: {max_share: 1.5}", "2:20: eject.max_share", "1"),
        ("limits: {streams: 0}", "limits.streams", ""),
        ("limits: {body_bytes: 4096, receiving_bytes: 4096}", "2:9: limits", "let one body fit"),
        ("limits: {body_bytes: 32MiB}", "limits.body_bytes", "not a whole number"),
        ("limits: {message_bytes: 1}", "limits.message_bytes", "unknown key"),
        ("tls: {certificate: server.pem}", "tls.key", "missing"),
        ("tls: {certificate: server.pem, key: ca.pem}", "tls", ""),
        ("auth: {tokens_file: nokey}", "auth.tokens_file", "name a file that can be read"),
        ("operators: {tokens_file: key}", "2:1: operators", "add `auth: {tokens_file: ...}`"),
        ("auth: {tokens_file: key}\noperators: {tokens_file: nokey}", "operators.tokens_file", "name a file"),
        ("passthrough: [rerank]", "2:15: passthrough[0]", "write for example /rerank"),
        ("passthrough: ['/a/*/b']", "2:15: passthrough[0]", "write for example /rerank"),
        ("passthrough: ['/a/../b']", "2:15: passthrough[0]", "write for example /rerank"),
        ("auth: {tokens_file: key, classes: {a: ['b c']}}", "auth.classes.a[0]", ""),
        ("auth: {}", "auth.tokens_file", "missing"),
        ("actions: {secret_file: nokey}", "2:24: actions.secret_file", "name a file that can be read"),
        ("actions: {secret_file: [signing]}", "2:24: actions.secret_file", "not a string"),
        (
            "actions: {engines: {r: {kind: relay, instances: {a: 'http://h'}, secret_file: signing}}}",
            "2:31: actions.engines.r.kind",
            "a relay asks no other relay",
        ),
        ("version: 2", "version", ""),
    ],
)
def test_what_is_wrong_is_said_with_its_place_and_what_to_write(
    folder: Path, text: str, place: str, reported: str
) -> None:
    text = text if text.startswith("version") else f"version: 1\n{text}"
    with pytest.raises(ConfigError) as problem:
        loaded(folder, text + "\n", "http://h:1")
    words = str(problem.value)
    assert words.startswith(f"{folder / 'relay.yaml'}:")
    assert place in words
    assert reported in words


@pytest.mark.parametrize("order", ["sjf", "anneal"])
def test_an_order_by_profile_is_taken_where_each_backend_has_one(folder: Path, order: str) -> None:
    backends = "backends: {a: {url: 'http://h', profile: h200-paper-era}, b: {url: 'http://g', profile: mine.yaml}}"
    found = loaded(folder, f"version: 1\n{backends}\nqueue: {{in_flight: 3, order: {order}}}\n")
    assert found.queue == Queue(in_flight=3, order=order)


def test_polyserve_has_a_queue_and_one_profile(folder: Path) -> None:
    (folder / "same.yaml").write_text(PROFILE)
    backend = "{url: 'http://PLACE', profile: NAME}"
    one, other = (backend.replace("PLACE", place).replace("NAME", "mine.yaml") for place in ("g", "h"))
    text = f"version: 1\nplacement: polyserve\nbackends: {{a: {one}, b: {other}}}\n"
    assert loaded(folder, text).queue == Queue(in_flight=None)
    assert loaded(folder, f"{text}queue: {{order: edf, max_wait: 5s}}\n").queue == Queue(
        in_flight=None, order="edf", max_wait_s=5.0
    )
    with pytest.raises(ConfigError, match=r"2:12: placement: .*same profile.*h200-paper-era, mine.*a relay for each"):
        loaded(folder, text.replace("mine.yaml", "h200-paper-era", 1))


def test_absent_keys_of_a_queue_are_the_defaults(folder: Path) -> None:
    found = loaded(folder, "version: 1\nqueue: {in_flight: 3}\n", "http://h:1")
    assert found.queue == Queue(in_flight=3, order="fcfs", max_waiting=1024, max_wait_s=30.0)


def test_a_profile_that_is_refused_is_said_with_its_own_place(folder: Path) -> None:
    with pytest.raises(ConfigError) as problem:
        loaded(folder, "version: 1\nbackends: {a: {url: 'http://h', profile: ./odd.yaml}}\n")
    assert str(problem.value).startswith(f"{folder / 'odd.yaml'}:5:12: kv_tokens: ")


@pytest.mark.parametrize("name", ["empty", "other"])
def test_a_key_that_is_none_is_said_of_its_file_without_its_text(folder: Path, name: str) -> None:
    with pytest.raises(ConfigError) as problem:
        loaded(folder, f"version: 1\nbackends: {{a: {{url: 'http://h', api_key_file: {name}}}}}\n")
    assert str(folder / name) in str(problem.value)
    assert "one token a line" in str(problem.value)
    assert "a key with spaces" not in str(problem.value)


@pytest.mark.parametrize("name", ["empty", "other", "key"])
def test_a_signing_secret_that_is_none_is_said_of_its_file_without_its_text(folder: Path, name: str) -> None:
    with pytest.raises(ConfigError) as problem:
        loaded(folder, f"version: 1\nactions: {{secret_file: {name}}}\n", "http://h:1")
    assert str(folder / name) in str(problem.value)
    assert (folder / name).read_text().strip() not in str(problem.value)


@pytest.mark.parametrize(
    ("text", "name", "url"),
    [
        ("http://h:1", "h:1", "http://h:1"),
        ("https://H.example", "h.example", "https://H.example"),
        ("a=http://h:1/", "a", "http://h:1"),
        ("a.b_c-d=http://[::1]:8000/base/", "a.b_c-d", "http://[::1]:8000/base"),
        ("http://[::1]:8000", "[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_a_backend_of_the_command_line(text: str, name: str, url: str) -> None:
    assert parse_backend(text) == BackendSettings(name=name, url=url)


@pytest.mark.parametrize(
    "text",
    [
        "", "a", "a=", "=", "h:8000", "a=h:8000", "ftp://h", "a=http://", "a=http://h:0", "a=http://h:99999",
        "a=http://h:x", "a=http://h?x=1", "a=http://h#x", "a=http://ho st:1", "a=http://h\n:1", "a=http://[::1",
        "a=http://h/b c", "a=http://h/\u00e9", "a=http://h/v1",
    ],
)  # fmt: skip
def test_what_is_no_backend_of_the_command_line(text: str) -> None:
    with pytest.raises(StartError, match="--backend a=http://"):
        parse_backend(text)


def test_a_password_is_not_repeated() -> None:
    with pytest.raises(StartError, match="api_key_file") as problem:
        parse_backend("a=http://user:secret@h:1")
    assert "secret" not in str(problem.value)


@pytest.mark.parametrize("text", ["a b=http://h:1", "<b>=http://h:1", "é=http://h:1", f"{'a' * 201}=http://h:1"])
def test_a_name_that_is_none(text: str) -> None:
    with pytest.raises(StartError, match="letters, digits, dot, underscore and hyphen"):
        parse_backend(text)


def test_backends_have_names_of_their_own(folder: Path) -> None:
    with pytest.raises(StartError, match="two backends are called a"):
        loaded(folder, "version: 1\nbackends: {a: {url: 'http://h'}}\n", "a=http://g")
    with pytest.raises(StartError, match="two backends are called h:1"):
        load_settings(None, ["http://h:1", "http://h:1/base"])
    with pytest.raises(StartError, match="no backend"):
        load_settings(None, [])
