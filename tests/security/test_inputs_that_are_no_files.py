"""What is read may be a pipe, a device or a link: nothing waits for ever, nothing is read without end."""

from __future__ import annotations

import os
import threading
from collections import Counter
from pathlib import Path

import pytest
from support.collector.http_client import RAW
from support.commands import collector, run
from support.otlp import T0_NS
from support.patience import WAIT_S

from otel_llm.config.errors import TlsFileError
from otel_llm.config.secret_files import secret_lines
from otel_llm.config.tls import Certificates, Tls
from otel_llm.config.yaml_file import UnreadableConfigError, load_yaml
from otel_llm.formats.input_paths import input_files
from otel_llm.formats.io.journal_format import frame
from otel_llm.formats.io.open_input import open_input
from otel_llm.formats.io.skipped import Skipped
from otel_llm.journal.records import last_receipt_ns, records_since

TIMES = "request,t_seconds,model,outcome\nr,0.1,m,completed\nr,0.2,m,completed\n"
NO_WRITER = "a pipe without a writer: start its writer first"


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


def test_a_pipe_is_read_where_it_has_a_writer_and_refused_at_once_where_it_has_none(pipe: Path) -> None:
    with pytest.raises(OSError, match=NO_WRITER):
        open_input(pipe)
    keeper = os.open(pipe, os.O_RDWR)
    with open_input(pipe) as file:  # its writer has written nothing yet
        os.write(keeper, b"a" * 10)
        assert file.read(10) == b"a" * 10
        os.write(keeper, b"b")
        assert file.read1() == b"b"
    os.write(keeper, b"c" * 60000)
    with open_input(pipe) as file:
        os.close(keeper)
        assert file.read() == b"c" * 60000
        assert file.read() == b""


def test_a_device_is_refused_and_the_null_device_is_empty(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/dev/zero")
    for path in (Path("/dev/zero"), tmp_path / "link"):
        with pytest.raises(OSError, match="no file, and no pipe"):
            open_input(path)
    with open_input(Path("/dev/null")) as file:
        assert file.read() == b""
    with pytest.raises(IsADirectoryError):
        open_input(tmp_path)
    given = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT, 0o600)
    os.write(given, b"x")
    with open_input(Path(f"/dev/fd/{given}")) as file:
        assert file.read() == b"x"
    os.close(given)


def test_files_of_settings_secrets_and_certificates_do_not_wait(pipe: Path) -> None:
    with pytest.raises(UnreadableConfigError, match=NO_WRITER):
        load_yaml(pipe)
    with pytest.raises(UnreadableConfigError, match=NO_WRITER):
        secret_lines(pipe)
    with pytest.raises(TlsFileError, match=NO_WRITER):
        Certificates(Tls(certificate=pipe, key=pipe))


@pytest.mark.parametrize("option", ["--config", "--slo", "--rules"])
def test_a_collector_does_not_wait_for_its_settings(tmp_path: Path, pipe: Path, option: str) -> None:
    done = run("collect", "--journal", tmp_path / "journal", option, pipe)
    assert done.returncode == 2
    assert f"{pipe}: {NO_WRITER}" in done.stderr


@pytest.mark.parametrize("name", ["pipe", "pipe.otlp", "pipe.parquet", "/dev/zero"])
def test_an_audit_does_not_wait_for_a_pipe_that_nobody_writes(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if not path.exists():
        os.mkfifo(path)
    done = run("audit", path)
    assert done.returncode == 2
    assert f"{path}: cannot be read: " in done.stderr
    assert ("start its writer first" in done.stderr) == (name != "/dev/zero")


def test_an_audit_reads_a_pipe_whole_and_once(tmp_path: Path, pipe: Path) -> None:
    writer = threading.Thread(target=pipe.write_text, args=[TIMES])
    writer.start()
    done = run("audit", pipe, "--format", "csv")
    writer.join(WAIT_S)
    assert (done.returncode, done.stderr) == (0, "")
    assert "client" in done.stdout


def test_pipes_and_links_in_a_journal_are_told_and_the_rest_is_read(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    journal.mkdir()
    name = "20260101T000000.000000000Z-00000{}.otlp"
    (journal / name.format(0)).write_bytes(frame(RAW, T0_NS))
    os.mkfifo(journal / name.format(1))
    (journal / name.format(2)).symlink_to("nowhere")
    (journal / name.format(3)).symlink_to("/dev/zero")
    (tmp_path / "elsewhere").write_bytes(frame(RAW, T0_NS + 1))
    (journal / name.format(4)).symlink_to(tmp_path / "elsewhere")
    skipped = Skipped()
    assert input_files([journal], skipped) == [journal / name.format(0), journal / name.format(4)]
    assert skipped.counts == {"unreadable_file": 3}
    assert [note.partition(": ")[2] for note in skipped.notes] == [
        "named as a journal's file, and no file: not read"
    ] * 3
    counted: Counter[str] = Counter()
    assert len(list(records_since(journal, 0, counted))) == 2
    assert last_receipt_ns(journal) == T0_NS + 1
    with collector(tmp_path) as running:  # it neither waits nor reads without end
        assert running.stop()[0] == 0
