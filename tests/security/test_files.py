"""Output files: no pipe delays a start, no link leads elsewhere, and no other user reads what a service writes."""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from support.commands import collector, environment, run
from support.patience import WAIT_S

from otel_llm.actions.alerts.alerts import STATE_FILE, State, read_state, state_bytes, write_state
from otel_llm.actions.delivery.channels import LogChannel
from otel_llm.actions.delivery.dead_letters import bury
from otel_llm.actions.delivery.durable_queue import Message
from otel_llm.collector.settings import load_settings
from otel_llm.config.errors import StartError
from otel_llm.config.yaml_file import ConfigError
from otel_llm.journal.checkpoint import RESUME_FILE, read_resume, write_resume
from otel_llm.journal.file import PROBE_FILE, try_to_write
from otel_llm.journal.journal import LOCK_FILE, Journal
from otel_llm.relay.settings import load_settings as load_relay_settings
from otel_llm.rules.decisions.files import DecisionFiles
from otel_llm.rules.decisions.output_file import open_output, own_descriptor
from otel_llm.shared.outputs import OutputError, check_output_path, replacing

PORTS = ("--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--web", "127.0.0.1:0")
TIMES = "request,t_seconds,model,outcome\nr,0.1,m,completed\nr,0.2,m,completed\n"


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


# Opening.


def test_a_pipe_that_nobody_reads_is_refused_at_once_and_one_with_a_reader_is_written(pipe: Path) -> None:
    with pytest.raises(OSError, match="start its reader first") as refused:
        open_output(pipe)
    assert (refused.value.errno, refused.value.filename) == (errno.ENXIO, str(pipe))
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    file, regular = open_output(pipe, append=True)
    assert not regular
    assert os.get_blocking(file.fileno())
    file.write(b"x")
    file.close()
    assert os.read(reader, 10) == b"x"
    os.close(reader)


def test_the_null_device_is_written_and_no_other(tmp_path: Path) -> None:
    file, regular = open_output(Path("/dev/null"))
    assert (file.write(b"x"), regular) == (1, False)
    file.close()
    for device in (Path("/dev/zero"), Path("/dev/full")):
        with pytest.raises(OSError, match="name a file, a pipe that is read, /dev/null"):
            open_output(device)
        with pytest.raises(OutputError, match="name a file"):
            check_output_path(device)
    (tmp_path / "link").symlink_to("/dev/zero")
    with pytest.raises(OSError, match="name a file"):
        open_output(tmp_path / "link")


def test_a_descriptor_of_our_own_is_written_on_where_it_is(tmp_path: Path) -> None:
    ours = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT, 0o600)
    os.write(ours, b"before ")
    for path in (Path(f"/dev/fd/{ours}"), Path(f"/proc/self/fd/{ours}"), tmp_path / "link"):
        if path.parent == tmp_path:
            path.symlink_to(f"/dev/fd/{ours}")
        assert own_descriptor(path) == ours
        file, regular = open_output(path)
        assert not regular
        file.write(b"x")
        file.close()
    with replacing(Path(f"/dev/fd/{ours}")) as whole:
        whole.write(b" after")
    assert (tmp_path / "file").read_bytes() == b"before xxx after"
    os.close(ours)
    with pytest.raises(OSError, match="not open for writing"):
        open_output(Path(f"/dev/fd/{ours}"))
    read_only = os.open(tmp_path / "file", os.O_RDONLY)
    with pytest.raises(OSError, match="not open for writing"):
        open_output(Path(f"/dev/fd/{read_only}"))
    os.close(read_only)
    assert own_descriptor(tmp_path / "file") is None
    assert own_descriptor(Path("/dev/stdout")) == 1


def test_links_that_lead_in_a_circle_are_no_descriptor(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert own_descriptor(tmp_path / "a") is None
    with pytest.raises(OSError, match="symbolic link"):
        open_output(tmp_path / "a")


def test_a_whole_file_goes_to_a_pipe_with_a_reader_only(pipe: Path) -> None:
    with pytest.raises(OutputError, match="start its reader first"), replacing(pipe):
        pytest.fail("it was opened")
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()))
    reader.start()
    while True:
        try:
            with replacing(pipe) as file:
                file.write(b"whole")
        except OutputError:  # the reader is not there yet
            continue
        break
    reader.join(WAIT_S)
    assert found == [b"whole"]


# Commands.


@pytest.mark.parametrize("option", ["--decisions", "--windows"])
def test_a_collector_refuses_a_pipe_that_nobody_reads_and_a_device(tmp_path: Path, pipe: Path, option: str) -> None:
    for path in (pipe, Path("/dev/zero")):
        done = run("collect", "--journal", tmp_path / "journal", *PORTS, option, path)
        assert done.returncode == 2
        assert f"{path}: " in done.stderr
        assert "name a file" in done.stderr


def test_a_relay_refuses_a_pipe_that_nobody_reads(pipe: Path) -> None:
    ports = ("--listen", "127.0.0.1:0", "--web", "127.0.0.1:0")
    done = run("relay", "--backend", "http://127.0.0.1:1", *ports, "--decisions", pipe)
    assert done.returncode == 2
    assert "start its reader first" in done.stderr


@pytest.mark.parametrize("option", ["--requests", "--html", "--streams"])
def test_an_audit_refuses_a_pipe_that_nobody_reads_and_a_device(tmp_path: Path, option: str) -> None:
    (tmp_path / "times.csv").write_text(TIMES)
    ending = {"--requests": "csv", "--html": "html", "--streams": "parquet"}[option]
    os.mkfifo(tmp_path / f"pipe.{ending}")
    (tmp_path / f"device.{ending}").symlink_to("/dev/zero")
    for name, words in (("pipe", "start its reader first"), ("device", "name a file")):
        done = run("audit", tmp_path / "times.csv", option, tmp_path / f"{name}.{ending}")
        assert done.returncode == 2
        assert words in done.stderr


def test_what_an_audit_writes_follows_the_umask(tmp_path: Path) -> None:
    (tmp_path / "times.csv").write_text(TIMES)
    for umask, expected in ((0o022, 0o644), (0o077, 0o600)):
        command = [sys.executable, "-m", "otel_llm.cli.main", "audit", "times.csv", "--requests", f"{umask}.csv"]
        subprocess.run(
            command, env=environment(), cwd=tmp_path, umask=umask, check=True, timeout=WAIT_S, capture_output=True
        )
        assert mode_of(tmp_path / f"{umask}.csv") == expected


@pytest.mark.parametrize(("files", "expected"), [("", 0o600), ("files: {mode: 0640}\n", 0o640)])
def test_what_a_collector_makes_is_its_own_unless_told_otherwise(tmp_path: Path, files: str, expected: int) -> None:
    (tmp_path / "settings.yaml").write_text(f"version: 1\n{files}")
    (tmp_path / "windows").touch(0o644)
    (tmp_path / "windows").chmod(0o644)
    outputs = ("--decisions", tmp_path / "decisions", "--windows", tmp_path / "windows")
    with collector(tmp_path, "--config", tmp_path / "settings.yaml", *outputs) as running:
        assert running.stop()[0] == 0
    assert mode_of(tmp_path / "decisions") == expected
    assert mode_of(tmp_path / "windows") == 0o644
    inside = list((tmp_path / "journal").iterdir())
    assert inside
    assert {mode_of(path) for path in inside} == {0o600}


def test_closed_files_of_decisions_the_log_of_alerts_and_dead_letters_are_as_private(tmp_path: Path) -> None:
    umask = os.umask(0o027)
    try:
        files = DecisionFiles(tmp_path / "decisions", max_bytes=10, mode=0o644)
        for _ in range(3):
            files.write({"time_unix_nano": 1})
        files.close()
        message = Message("m", "log", "about", json.dumps({"id": "m"}), 1, 1)
        assert LogChannel(tmp_path / "log").deliver(message).verdict == "accepted"
        bury(tmp_path / "dead", message, "no", 1)
    finally:
        os.umask(umask)
    assert {mode_of(path) for path in tmp_path.glob("decisions*")} == {0o644}
    assert len(list(tmp_path.glob("decisions*"))) == 3
    assert (mode_of(tmp_path / "log"), mode_of(tmp_path / "dead")) == (0o600, 0o600)


@pytest.mark.parametrize("mode", ["0666", "0620", "0400", "416", "'x'", "true", "0750", "-640"])
def test_a_mode_that_opens_more_is_refused(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(f"version: 1\nfiles: {{mode: {mode}}}\n")
    with pytest.raises(ConfigError, match="write 0600, 0640 or 0644"):
        load_settings(path)


@pytest.mark.parametrize("mode", ["0640", "'0640'", "'640'"])
def test_a_mode_is_octal_however_it_is_written(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(f"version: 1\nfiles: {{mode: {mode}}}\n")
    assert load_settings(path).files.mode == 0o640
    path.write_text(f"version: 1\nbackends: {{a: {{url: 'http://127.0.0.1:1'}}}}\nfiles: {{mode: {mode}}}\n")
    assert load_relay_settings(path, ()).files.mode == 0o640


# The journal's folder.


def take_lock(folder: Path) -> None:
    Journal(folder).open().close()


def bury_one(folder: Path) -> None:
    bury(folder / "dead_letters.jsonl", Message("m", "log", "about", "{}", 1, 1), "no", 1)


WRITTEN: dict[str, Callable[[Path], None]] = {
    LOCK_FILE: take_lock,
    f"{RESUME_FILE}.tmp": lambda folder: write_resume(folder, {"a": 1}),
    RESUME_FILE: lambda folder: write_resume(folder, {"a": 1}),
    f"{STATE_FILE}.tmp": lambda folder: write_state(folder, state_bytes(State(1))),
    PROBE_FILE: lambda folder: try_to_write(folder, 100, None),
    "dead_letters.jsonl": bury_one,
}


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("link", ["symbolic", "hard", "dangling"])
def test_no_link_in_the_folder_of_the_journal_is_written_through(tmp_path: Path, name: str, link: str) -> None:
    folder, victim = tmp_path / "journal", tmp_path / "victim"
    folder.mkdir()
    if link != "dangling":
        victim.write_text("precious\n")
    if link == "hard":
        (folder / name).hardlink_to(victim)
    else:
        (folder / name).symlink_to(victim)
    try:
        WRITTEN[name](folder)
    except (OSError, StartError) as error:
        assert "remove it" in str(error)  # noqa: PT017 - or it was replaced, which is as good
    if link == "dangling":
        assert not victim.exists()
    else:
        assert victim.read_text() == "precious\n"


def test_a_collector_says_which_link_is_in_its_way(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    (tmp_path / "victim").write_text("precious\n")
    (tmp_path / "journal" / LOCK_FILE).symlink_to(tmp_path / "victim")
    done = run("collect", "--journal", tmp_path / "journal", *PORTS)
    assert done.returncode == 2
    assert "a link, or a name of another file: remove it" in done.stderr
    assert (tmp_path / "victim").read_text() == "precious\n"


@pytest.mark.parametrize("name", [RESUME_FILE, STATE_FILE])
@pytest.mark.parametrize("pipe_or_link", ["pipe", "link"])
def test_a_pipe_or_a_link_in_place_of_a_checkpoint_is_none(tmp_path: Path, name: str, pipe_or_link: str) -> None:
    if pipe_or_link == "pipe":
        os.mkfifo(tmp_path / name)
    else:
        (tmp_path / "elsewhere").write_text('{"version":1,"saved_ns":1,"alerts":[],"messages":[]}')
        (tmp_path / name).symlink_to(tmp_path / "elsewhere")
    assert read_resume(tmp_path) == {}
    assert read_state(tmp_path) == State()


# Signals while a service starts.

SLOW_START = """
import sys, time
from otel_llm.{package}.service import Service
from otel_llm.cli.main import main

def prepare(self):
    print("starting", flush=True)
    time.sleep(600)

Service.prepare = prepare
main(sys.argv[1:])
"""


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("package", ["collector", "relay"])
def test_a_signal_ends_a_start(tmp_path: Path, package: str, sent: signal.Signals) -> None:
    arguments = {
        "collector": ["collect", "--journal", str(tmp_path / "journal"), *PORTS],
        "relay": ["relay", "--backend", "http://127.0.0.1:1", "--listen", "127.0.0.1:0", "--web", "127.0.0.1:0"],
    }
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_START.format(package=package), *arguments[package]],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        while process.stdout.readline() != "starting\n":
            assert process.poll() is None
        process.send_signal(sent)
        _, said = process.communicate(timeout=WAIT_S)
    finally:
        process.kill()
        process.wait()
    if package == "collector":
        assert (process.returncode, said) == (128 + sent, "otel-llm: stopped while it started\n")
    else:  # it handles signals once its loop runs; until then they do what they do to any program
        assert process.returncode == (1 if sent == signal.SIGINT else -sent)
