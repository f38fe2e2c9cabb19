"""`otel-llm relay`: what is refused and how, and what signals do to a relay that serves."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any

import aiohttp
import pytest
from click.testing import CliRunner, Result
from support.patience import WAIT_S
from support.relay.fake_engine import FakeEngine, Fault
from support.relay.process import Relay, relay
from support.relay.readers import Reply, read

from otel_llm.cli.commands.relay_command import relay as command
from otel_llm.cli.main import COMMANDS
from otel_llm.relay.settings import Queue, RelaySettings, load_settings
from otel_llm.scheduling.placement import POLICIES
from otel_llm.scheduling.release_order import ORDERS

BACKEND = ("--backend", "a=http://127.0.0.1:9")
CHAT: dict[str, Any] = {
    "model": "fake",
    "temperature": 0,
    "max_tokens": 12,
    "ignore_eos": True,
    "messages": [{"role": "user", "content": "x"}],
}


def refused(*arguments: str | Path) -> str:
    """Run a command that is refused before anything listens, as `otel-llm collect` is: status 2, and words."""
    result: Result = CliRunner().invoke(command, [str(argument) for argument in arguments])
    assert result.exit_code == 2, result.output
    assert "Error: " in result.output
    assert "Traceback" not in result.output
    return result.output.partition("Error: ")[2]


def test_the_command_is_in_the_list_of_commands() -> None:
    assert COMMANDS["relay"][:2] == ("otel_llm.cli.commands.relay_command", "relay")


def test_the_help_names_every_placement_policy() -> None:
    found = CliRunner().invoke(command, ["--help"]).output
    assert [name for name in POLICIES if name not in found] == []


def test_the_settings_in_the_help_are_read_and_are_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "b.key").write_text("a-key-of-this-test\n")
    (tmp_path / "relay.secret").write_text(f"whsec_{'A' * 44}\n")
    _, _, below = (command.epilog or "").partition("relay.yaml:\n")
    (tmp_path / "relay.yaml").write_text(dedent(below))
    found, default = load_settings(tmp_path / "relay.yaml", ()), RelaySettings()
    assert [name for name in ORDERS if name not in below] == []
    assert found.queue == Queue(in_flight=64)
    shown = {"failover", "placement", "preempt", "version"}
    assert found.model_fields_set - shown == {"backends", "queue", "actions"}
    assert all(getattr(found, name) == getattr(default, name) for name in shown)


def test_settings_that_are_wrong_are_refused_with_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "relay.yaml"
    file.write_text("version: 1\nbackends:\n  a: {url: 'http://h', api_key: x}\n")
    assert refused("--config", file).startswith(f"{file}:3:24: backends.a.api_key: unknown key (did you mean ")
    file.write_text("version: 1\nbackends:\n  a: {url: 'http://h', api_key_file: nokey}\n")
    assert f"{file}:3:38: backends.a.api_key_file: {tmp_path / 'nokey'}: No such file" in refused("--config", file)
    assert "no backend" in refused()
    assert "no backend" in refused("--listen", "127.0.0.1:0")
    assert "--backend" in refused("--backend", "a=http://[::1")
    assert "HOST:PORT" in refused(*BACKEND, "--listen", "8080")
    assert "No such file" in refused(*BACKEND, "--slo", tmp_path / "none.yaml")
    assert "none.yaml" in refused(*BACKEND, "--rules", tmp_path / "none.yaml")


def test_a_wrong_list_of_collectors_is_refused_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_LLM_ENDPOINTS", "http://a:4317,http://a:4317")
    assert refused(*BACKEND).startswith("OTEL_LLM_ENDPOINTS: entry 2 is http://a:4317 again: name each collector once")


@pytest.mark.parametrize("option", ["--listen", "--web"])
def test_a_port_in_use_is_refused_with_its_option(option: str) -> None:
    other = "--web" if option == "--listen" else "--listen"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        reported = refused(*BACKEND, option, address, other, "127.0.0.1:0")
    assert reported.startswith(f"{address} is in use")
    assert f"{option} HOST:PORT" in reported


@pytest.mark.parametrize("name", ["relay.yaml", "key", "tokens", "rules.yaml", "dead.jsonl"])
def test_decisions_are_never_written_into_another_file(tmp_path: Path, name: str) -> None:
    for file in ("key", "tokens"):
        (tmp_path / file).write_text("a-secret-of-this-test\n")
    (tmp_path / "rules.yaml").write_text("version: 1\ngroups: []\n")
    (tmp_path / "relay.yaml").write_text(
        "version: 1\nbackends: {a: {url: 'http://127.0.0.1:9', api_key_file: key}}\nauth: {tokens_file: tokens}\n"
        "alerts: {log: alerts.jsonl, dead_letter: dead.jsonl}\n"
    )
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    arguments = ("--config", tmp_path / "relay.yaml", "--rules", tmp_path / "rules.yaml")
    assert name in refused(*arguments, "--decisions", tmp_path / name)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


@asynccontextmanager
async def running(engine: FakeEngine, folder: Path, drain_s: float) -> AsyncIterator[Relay]:
    """Run a relay in a process of its own, while this loop serves its backend."""
    folder.mkdir()
    (folder / "relay.yaml").write_text(f"version: 1\nlimits: {{drain_seconds: {drain_s}}}\n")
    (folder / "rules.yaml").write_text(
        "version: 1\ngroups:\n- name: g\n  scope: stream\n  rules:\n"
        "  - {rule: R, when: 'tokens > 5 && tokens < 3', actions: [alert: {name: r}]}\n"
    )
    made = relay("--backend", f"a={engine.url}", "--config", folder / "relay.yaml", "--rules", folder / "rules.yaml")
    found = await asyncio.to_thread(made.__enter__)
    try:
        yield found
    finally:
        await asyncio.to_thread(made.__exit__, None, None, None)


async def rest(found: Relay) -> tuple[int, str]:
    """Wait for the end of a relay; return its status, and what it said until then."""
    stdout = found.process.stdout
    assert stdout is not None
    reported = await asyncio.wait_for(asyncio.to_thread(stdout.read), WAIT_S)
    return await asyncio.to_thread(found.process.wait, WAIT_S), reported


async def stalled(session: aiohttp.ClientSession, engine: FakeEngine, url: str) -> tuple[asyncio.Task[Reply], Fault]:
    fault = Fault("stall", after=6)
    engine.next_fault(fault)
    reading = asyncio.create_task(read(session, url + "/v1", CHAT))
    await asyncio.wait_for(fault.reached.wait(), WAIT_S)
    return reading, fault


def test_signals(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Two relays at once: the first may wait for its stream, the second may not."""

    async def go() -> None:
        async with (
            FakeEngine() as engine,
            running(engine, tmp_path / "patient", 60) as patient,
            running(engine, tmp_path / "hasty", 0.2) as hasty,
            aiohttp.ClientSession() as session,
        ):
            whole, stall = await stalled(session, engine, patient.url)
            (tmp_path / "patient" / "rules.yaml").write_text("version: 1\ngroups: []\n")
            patient.process.send_signal(signal.SIGHUP)
            cut, _ = await stalled(session, engine, hasty.url)

            hasty.process.terminate()
            status, reported = await rest(hasty)
            assert (status, reported.splitlines()[-1]) == (1, "stopped: streams were cut at the end of the drain time")
            reply = await cut
            assert [(error["type"], error["code"]) for error in reply.errors] == [("upstream_error", "shutting_down")]
            assert not reply.done
            assert reply.finish is None

            patient.process.terminate()
            async with asyncio.timeout(WAIT_S):
                while not await is_stopping(session, patient):
                    await asyncio.sleep(0.02)
            with pytest.raises(aiohttp.ClientConnectorError):
                async with aiohttp.ClientSession() as other:
                    await other.get(patient.url + "/v1/models")
            assert not whole.done()
            stall.released.set()
            assert (await whole).done
            status, reported = await rest(patient)
            assert status == 0
            lines = reported.splitlines()
            assert "reloaded: classes and rules (" in reported
            assert "rules: 0" in reported
            assert lines[-1] == "stopped"

    asyncio.run(go())
    assert "never holds together" in capfd.readouterr().err


async def is_stopping(session: aiohttp.ClientSession, found: Relay) -> bool:
    """Tell whether a relay stops: its port for the web takes no new connection then."""
    try:
        async with session.get(found.web + "/readyz") as response:
            return (response.status, await response.text()) == (503, "stopping\n")
    except aiohttp.ClientConnectorError:
        return True
