"""What a command writes is none of what it reads, and is there whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.recordings import bursts, json_lines

from otel_llm.shared.outputs import Inputs, OutputError, check_output_path, refuse_clashes, replacing

RULES = "version: 1\ngroups:\n- name: g\n  scope: stream\n  rules: []\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a folder with one file of each kind of input, some of them in folders."""
    monkeypatch.chdir(tmp_path)
    for name in ("runs/deep", "rules", "journal"):
        (tmp_path / name).mkdir(parents=True)
    recording = json_lines(bursts([0, 1], 10**9))
    for name in ("one.jsonl", "runs/deep/two.jsonl"):
        (tmp_path / name).write_bytes(recording)
    for name in ("rules/a.yaml", "slo.yaml"):
        (tmp_path / name).write_text(RULES)
    for name in ("runs/notes.txt", "rules/notes.txt", "decisions.jsonl", "decisions.jsonl.000001"):
        (tmp_path / name).write_text("words\n")
    (tmp_path / "journal" / "20260921T141320.000000000Z-000000.otlp").write_bytes(b"")
    os.link(tmp_path / "one.jsonl", tmp_path / "hard.jsonl")
    (tmp_path / "linked.jsonl").symlink_to("one.jsonl")
    return tmp_path


def inputs() -> Inputs:
    """Return them as a command line would name them."""
    return Inputs(
        recordings=[Path("one.jsonl"), Path("runs")],
        rules=["rules"],
        decisions=[Path("decisions.jsonl")],
        journals=[Path("journal")],
        files=[None, Path("slo.yaml")],
    )


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "output",
    [
        *("one.jsonl", "./runs/../one.jsonl", "hard.jsonl", "linked.jsonl", "runs/deep/two.jsonl", "rules/a.yaml"),
        *("decisions.jsonl", "decisions.jsonl.000001", "journal/20260921T141320.000000000Z-000000.otlp", "slo.yaml"),
    ],
)
def test_an_input_is_refused_by_whatever_name(output: str) -> None:
    with pytest.raises(OutputError, match=r"is one of the inputs.*; name another file"):
        refuse_clashes([Path("new.csv"), Path(output)], inputs())


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", ["mine.otlp", "mine.otlp.zst"])
def test_what_a_journal_would_take_for_its_own_is_refused_before_it_is_there(name: str) -> None:
    with pytest.raises(OutputError, match=r"would be taken for a file of the journal; name another file"):
        refuse_clashes([Path("journal") / name], inputs())
    refuse_clashes([Path("runs") / name], inputs())


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("output", ["new.csv", "runs/notes.txt", "rules/notes.txt", "journal/mine.jsonl", os.devnull])
def test_what_is_not_read_may_be_written_over(output: str) -> None:
    refuse_clashes([Path(output)], inputs())


def test_two_outputs_are_two_files(folder: Path) -> None:
    (folder / "same").symlink_to(folder / "new.csv")
    for first, second in (("new.csv", "new.csv"), ("new.csv", "same"), ("hard.jsonl", "one.jsonl")):
        with pytest.raises(OutputError, match=f"{second} would be written twice"):
            refuse_clashes([Path(first), Path(second)], Inputs())
    refuse_clashes([Path(os.devnull), Path(os.devnull)], Inputs(files=[Path(os.devnull)]))


def test_what_cannot_be_listed_is_left_to_whoever_reads_it(folder: Path) -> None:
    refuse_clashes([folder / "slo.yaml"], Inputs([Path("none"), Path("no*.x")], ["none*"], [Path("n")], [Path("n")]))


def test_a_place_must_be_there(folder: Path) -> None:
    check_output_path(folder / "new.csv")
    with pytest.raises(OutputError, match=r"the folder .*none does not exist; make it first"):
        check_output_path(folder / "none" / "x.csv")
    with pytest.raises(OutputError, match="is a folder; name a file in it"):
        check_output_path(folder / "runs")


def test_the_old_file_stands_until_the_new_one_is_whole(folder: Path) -> None:
    path = folder / "out.jsonl"
    path.write_bytes(b"old")
    before = sorted(folder.iterdir())
    with pytest.raises(TypeError), replacing(path) as file:
        file.writelines([b"half", None])  # type: ignore[list-item]
    assert (path.read_bytes(), sorted(folder.iterdir())) == (b"old", before)
    with replacing(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert (path.read_bytes(), sorted(folder.iterdir())) == (b"new", before)


def test_an_error_of_another_file_is_not_told_as_the_outputs(folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.jsonl"), replacing(folder / "out.jsonl"):
        (folder / "none.jsonl").read_bytes()
    with pytest.raises(OutputError, match="x cannot be written: No such file"), replacing(folder / "none" / "x"):
        pass


def test_a_pipe_is_written_to_and_not_replaced(folder: Path) -> None:
    path = folder / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with replacing(path) as file:
            file.write(b"line")
        assert os.read(reader, 10) == b"line"
    finally:
        os.close(reader)
    assert path.is_fifo()
