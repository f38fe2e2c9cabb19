"""Which files paths stand for: folders of anything, patterns, links, standard input."""

from __future__ import annotations

import gzip
import os
from collections import Counter
from pathlib import Path

import pytest
from support.formats.span_formats import SPAN_FORMATS, clickhouse, jaeger
from support.recordings import journal, read_inputs, vector_messages

from otel_llm.actions.alerts.alerts import STATE_FILE
from otel_llm.actions.delivery.dead_letters import DEAD_LETTERS
from otel_llm.formats.input_paths import input_files, size
from otel_llm.formats.io.skipped import Skipped
from otel_llm.formats.records import InputError
from otel_llm.journal.checkpoint import RESUME_FILE
from otel_llm.journal.journal import LOCK_FILE

MESSAGES = vector_messages()[:1]
CSV = b"request,t_seconds\na,0.1\n"


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A folder of anything: recordings, a journal's folder, files of other things, a link to itself."""
    (tmp_path / "b.txt").write_bytes(jaeger(MESSAGES))
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(CSV))
    (tmp_path / "deep" / "deeper").mkdir(parents=True)
    (tmp_path / "deep" / "deeper" / "c.json").write_bytes(clickhouse(MESSAGES))
    (tmp_path / "deep" / "loop").symlink_to(tmp_path)
    (tmp_path / "deep" / "again.txt").symlink_to(tmp_path / "b.txt")
    (tmp_path / "j").mkdir()
    (tmp_path / "j" / "1.otlp").write_bytes(journal(MESSAGES))
    (tmp_path / "j" / "decisions.jsonl").write_bytes(b"{}\n")
    (tmp_path / ".hidden").write_bytes(CSV)
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "x.csv").write_bytes(CSV)
    (tmp_path / "README").write_bytes(b"nothing of ours")
    (tmp_path / "picture.ico").write_bytes(bytes([0, 0, 1, 0, 2, 0]) * 20)
    (tmp_path / "settings.json").write_bytes(b'{"name": "x"}')
    (tmp_path / "_SUCCESS").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


def names(files: list[Path], folder: Path) -> list[str]:
    return [str(file.relative_to(folder)) for file in files]


def test_a_folder_is_all_that_we_know_in_it(mixed: Path) -> None:
    skipped = Skipped()
    files = input_files([mixed], skipped)
    assert names(files, mixed) == ["_SUCCESS", "a.csv.gz", "b.txt", "deep/deeper/c.json", "j/1.otlp"]
    assert skipped.counts == Counter(unknown_file=3)
    assert sorted(Path(note.split(":")[0]).name for note in skipped.notes) == ["README", "picture.ico", "settings.json"]
    assert skipped.broken == 0
    assert len(list(read_inputs([mixed], Skipped()))) == 4


def test_a_link_does_not_read_a_file_twice_nor_go_round(mixed: Path) -> None:
    files = input_files([mixed / "deep", mixed, mixed / "b.txt", mixed / "deep" / ".." / "b.txt"], Skipped())
    assert len({file.resolve() for file in files}) == len(files) == 5


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.txt", ["b.txt"]),
        ("**/*.json", ["deep/deeper/c.json"]),
        ("[ab].*", ["a.csv.gz", "b.txt"]),
        ("?", ["j/1.otlp"]),
        ("deep/d*", ["deep/deeper/c.json"]),
        ("**", ["_SUCCESS", "a.csv.gz", "b.txt", "deep/deeper/c.json", "j/1.otlp"]),
    ],
)
def test_a_pattern_is_what_it_matches(mixed: Path, pattern: str, expected: list[str]) -> None:
    skipped = Skipped()
    assert sorted(names(input_files([mixed / pattern], skipped), mixed)) == expected
    if pattern == "**":  # the folder, not each of its folders again
        assert skipped.counts == Counter(unknown_file=3)


def test_a_file_whose_name_is_a_pattern_is_that_file(tmp_path: Path) -> None:
    (tmp_path / "run[1].csv").write_bytes(CSV)
    (tmp_path / "run1.csv").write_bytes(CSV)
    assert names(input_files([tmp_path / "run[1].csv"], Skipped()), tmp_path) == ["run[1].csv"]


def test_nothing_found_is_reported_before_anything_is_read(mixed: Path) -> None:
    with pytest.raises(InputError, match=r"\*\.parquet: no file matches"):
        input_files([mixed / "*.parquet"], Skipped())
    with pytest.raises(InputError, match=r"README.*: none of the 1 files that match can be read"):
        input_files([mixed / "README*"], Skipped())
    (mixed / "empty").mkdir()
    with pytest.raises(InputError, match=r"empty: the folder is empty: expected a journal"):
        input_files([mixed / "empty"], Skipped())
    (mixed / "empty" / "notes.md").write_bytes(b"hello")
    with pytest.raises(InputError, match=r"nothing in this folder.*notes\.md: holds no format that we know"):
        input_files([mixed / "empty"], Skipped())


@pytest.mark.parametrize("journals", [False, True])
def test_a_journal_that_has_received_nothing_says_so(tmp_path: Path, *, journals: bool) -> None:
    for name in (LOCK_FILE, RESUME_FILE, STATE_FILE, DEAD_LETTERS):
        (tmp_path / name).write_text("")
        with pytest.raises(InputError, match="a journal that has received nothing yet"):
            input_files([tmp_path], Skipped(), journals=journals)
    (tmp_path / "1.otlp").write_bytes(journal(MESSAGES))
    assert names(input_files([tmp_path], Skipped(), journals=journals), tmp_path) == ["1.otlp"]


def test_a_folder_of_alerts_alone_is_no_journal(tmp_path: Path) -> None:
    (tmp_path / STATE_FILE).write_text("{x")
    with pytest.raises(InputError, match="nothing in this folder can be read"):
        input_files([tmp_path], Skipped())


def test_a_file_that_cannot_be_read_ends_only_what_named_it(tmp_path: Path) -> None:
    # It begins as Jaeger's traces do, and there is none in it.
    (tmp_path / "bad.json").write_bytes(b'{"data": [{"traceID": "1", "spans": [{"traceID": 1}], "processes": {}}]}')
    (tmp_path / "good.csv").write_bytes(CSV)
    skipped = Skipped()
    assert len(list(read_inputs([tmp_path], skipped))) == 1
    assert skipped.counts == Counter(bad_record=1, unreadable_file=1)
    assert skipped.broken == 2
    with pytest.raises(InputError, match=r"bad\.json"):
        list(read_inputs([tmp_path / "bad.json"]))


def test_sizes_are_those_of_files(mixed: Path) -> None:
    assert size(mixed / "b.txt") == len(jaeger(MESSAGES))
    assert [size(mixed / "pipe"), size(Path("-")), size(mixed / "gone")] == [0, 0, 0]


@pytest.mark.parametrize("file_format", SPAN_FORMATS)
def test_every_format_is_known_in_a_folder(file_format: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(SPAN_FORMATS[file_format](MESSAGES))
    assert names(input_files([tmp_path], Skipped()), tmp_path) == ["x"]
