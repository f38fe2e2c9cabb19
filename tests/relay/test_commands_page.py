"""The settings that `docs/relay.md` shows are read; those for commands of a collector by both sides."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent

import pytest
from support.collector.tls_files import authority, signed
from support.relay.signed_actions import write_secret

from otel_llm.actions.execute.executors import RELAY_DOES, executors
from otel_llm.collector.settings import load_settings as load_collector
from otel_llm.relay.settings import Queue, RelaySettings
from otel_llm.relay.settings import load_settings as load_relay

PAGE = (Path(__file__).parents[2] / "docs" / "relay.md").read_text()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_secret(tmp_path)
    for name in ("relay.yaml", "collector.yaml"):
        (block,) = re.findall(rf"(?m)^    # {name}, for:.*\n(?:    .*\n)+", PAGE)
        (tmp_path / name).write_text(dedent(block))
    return tmp_path


def test_both_files_are_read(folder: Path) -> None:
    relay = load_relay(folder / "relay.yaml", ())
    collector = load_collector(folder / "collector.yaml")
    assert relay.drain.migrate
    assert executors(collector) == RELAY_DOES
    (engine,) = collector.actions.engines.values()
    assert engine.secret_file == relay.actions.secret_file == folder / "relay.secret"


@pytest.mark.parametrize(
    ("title", "queue", "placement"),
    [
        ("## The queue", Queue(in_flight=64, order="edf"), "least_load"),
        ("### Tiers: polyserve", Queue(in_flight=None, order="edf"), "polyserve"),
    ],
)
def test_the_settings_of_a_section_are_read(tmp_path: Path, title: str, queue: Queue, placement: str) -> None:
    (block,) = re.findall(r"(?m)^(?:    .*\n)+", PAGE.partition(f"\n{title}\n")[2].partition("\n#")[0])
    backends = "backends: {a: {url: 'http://h', profile: h200-llama-3.1-8b}}\n"
    (tmp_path / "relay.yaml").write_text(f"version: 1\n{backends}{dedent(block)}")
    found = load_relay(tmp_path / "relay.yaml", ())
    assert (found.queue, found.placement) == (queue, placement)


def test_the_settings_of_the_page_are_the_defaults(folder: Path) -> None:
    (block,) = re.findall(r"(?s)\n## Settings\n.*?```yaml\n(.*?)```", PAGE)
    pair, ca = signed(), authority().certificate.read_bytes()
    files = {"server.pem": pair.certificate.read_bytes(), "server.key": pair.key.read_bytes(), "clients.pem": ca}
    for name, content in {
        **files,
        "ca.pem": ca,
        "b.key": b"a-key-of-this-test\n",
        "tokens.txt": b"a-token-of-this-test\n",
        "operators.txt": b"an-operator-of-this-test\n",
    }.items():
        (folder / name).write_bytes(content)
    (folder / "every.yaml").write_text(block)
    found = load_relay(folder / "every.yaml", ())
    given = {"backends", "queue", "tls", "auth", "operators", "cors", "passthrough", "web", "actions"}
    default = RelaySettings()
    assert found.model_copy(update={name: getattr(default, name) for name in given}) == default
    assert all(getattr(found, name) != getattr(default, name) for name in given)
    backends = {name: (one.kind, one.group) for name, one in found.backends.items()}
    assert backends == dict.fromkeys("ab", ("vllm", "llama"))
