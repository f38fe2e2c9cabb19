"""Traces: Azure's and Mooncake's columns are read exactly, and every fault is named with its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.requirements import TRACES, require

from otel_llm.config.yaml_file import ConfigError, UnreadableConfigError
from otel_llm.scheduling.workload.trace_file import read_trace

HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
AZURE = HEAD + "2023-11-16 18:15:50.9951690,396,109\n2023-11-16 18:15:46.6805900,374,44\n"
MOONCAKE = (
    '{"timestamp": 27, "input_length": 7322, "output_length": 490, "hash_ids": [0, 14]}\n\n'
    '{"timestamp": 27.5, "input_length": 6758, "output_length": 0}\n'
)


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "trace"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_azure_is_read_to_the_tenth_of_a_microsecond_and_sorted(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, AZURE))
    assert (trace.times_ns - trace.times_ns[0]).tolist() == [0, 4_314_579_000]
    assert trace.times_ns[0] == 1_700_158_546_680_590_000
    assert (trace.input.tolist(), trace.output.tolist()) == ([374, 396], [44, 109])


def test_mooncake_is_in_milliseconds(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, MOONCAKE))
    assert trace.times_ns.tolist() == [27_000_000, 27_500_000]
    assert (trace.input.tolist(), trace.output.tolist()) == ([7322, 6758], [490, 0])


def test_rows_of_one_time_stay_in_order(tmp_path: Path) -> None:
    row = '{"timestamp": 0, "input_length": %d, "output_length": 1}\n'
    trace = read_trace(written(tmp_path, "".join(row % length for length in (5, 3, 9, 1))))
    assert trace.input.tolist() == [5, 3, 9, 1]


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", 1, "no such column"),
        ("TIMESTAMP,ContextTokens\n", 1, "GeneratedTokens: no such column"),
        (HEAD, 1, "no rows"),
        (HEAD + "2023-11-16 18:15:50,1,2\n" + "9" * 200_000 + ",1,2\n", 3, "not CSV: field larger than"),
        ('{"timestamp": 0, "input_length": ' + "[" * 100_000, 1, "not JSON: maximum recursion"),
        (HEAD + "2023-11-16 18:15:50,1,2\nyesterday,1,2\n", 3, "'yesterday' is no time"),
        (HEAD + "2023-13-16 18:15:50,1,2\n", 2, "is no time (write UTC as"),
        (HEAD + "2023-11-16 18:15:50,-1,2\n", 2, "ContextTokens: '-1' is no number of tokens"),
        (HEAD + "2023-11-16 18:15:50,1,1.5\n", 2, "GeneratedTokens: '1.5' is no number of tokens"),
        (HEAD + "2023-11-16 18:15:50,1,nan\n", 2, "GeneratedTokens: 'nan' is no number of tokens"),
        (HEAD + "2023-11-16 18:15:50,1,2,3\n", 2, "more cells than the 3 columns of the header"),
        ("TIMESTAMP,ContextTokens,ContextTokens,GeneratedTokens\n", 1, "ContextTokens: the column is there twice"),
        (HEAD + "2023-11-16 18:15:50,1\n", 2, "GeneratedTokens: None is no number of tokens"),
        ('{"timestamp": 0, "input_length": 1, "output_length": 1}\n{', 2, "not JSON"),
        ('{"timestamp": NaN, "input_length": 1, "output_length": 1}', 1, "timestamp: nan is no number"),
        ('{"timestamp": -1, "input_length": 1, "output_length": 1}', 1, "timestamp: out of range"),
        ('{"timestamp": 1e999, "input_length": 1, "output_length": 1}', 1, "timestamp: inf is no number"),
        ('{"timestamp": 0, "input_length": true, "output_length": 1}', 1, "input_length: True is no number"),
        ('{"timestamp": 0, "input_length": 1e12, "output_length": 1}', 1, "write a whole number from 0 to 1000000000"),
        ('{"timestamp": 0, "input_length": 1}', 1, "output_length: None is no number"),
    ],
)
def test_a_faulty_row_is_named(tmp_path: Path, text: str, line: int, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_trace(written(tmp_path, text))
    assert refused.value.line == line
    assert words in str(refused.value)
    assert "(" in str(refused.value), "a remedy"


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(UnreadableConfigError, match="nothere"):
        read_trace(tmp_path / "nothere")
    with pytest.raises(ConfigError, match=":2: not UTF-8"):
        read_trace(written(tmp_path, b"\n\xff\xff"))


@given(st.text(max_size=80) | st.text("{}[],:\"'0123456789.eE-+timestampinputlength_", max_size=80))
def test_any_text_is_a_trace_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = written(tmp_path_factory.getbasetemp(), HEAD + text if len(text) % 2 else text)
    try:
        rows = len(read_trace(path))
    except ConfigError:  # any other exception fails
        rows = None
    assert rows is None or rows > 0


@pytest.mark.parametrize(
    ("name", "rows", "minutes"),
    [
        ("azure_2023_conv.csv", 19_366, 58),
        ("azure_2023_code.csv", 8_819, 57),
        ("mooncake_conversation.jsonl", 12_031, 59),
    ],
)
def test_the_public_traces_are_read(name: str, rows: int, minutes: int) -> None:
    require("traces")
    trace = read_trace(TRACES / name)
    assert len(trace) == rows
    assert (trace.times_ns[-1] - trace.times_ns[0]) / 60e9 == pytest.approx(minutes, abs=1)
