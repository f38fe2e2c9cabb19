"""Profiles as files: what is read, and each mistake with its file, line and remedy."""

from __future__ import annotations

from contextlib import suppress
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import otel_llm.scheduling
from otel_llm.config.yaml_file import ConfigError, UnreadableConfigError
from otel_llm.scheduling.profiles import load_profile
from otel_llm.scheduling.profiles.profile import LinearProfile, Terms
from otel_llm.scheduling.profiles.profile_file import exact_duration_ns
from otel_llm.scheduling.profiles.table import read_grid

FACTS = """\
version: 1
model: m
accelerator: a
engine: e
kv_tokens: 10000
max_batch: 64
max_batched_tokens: 512
source: a test
"""
HEADER = "decode_batch,decode_kv_tokens,prefill_chunk_tokens,prefill_prior_kv_tokens,iteration_ms\n"
ROWS = "1,100,0,0,1\n1,200,0,0,1.5\n2,200,0,0,1.25\n2,400,0,0,2\n"


def write(folder: Path, text: str, rows: str | bytes | None = None) -> Path:
    path = folder / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    if rows is not None:
        (folder / "mine.csv").write_bytes(rows if isinstance(rows, bytes) else rows.encode())
    return path


def refused(folder: Path, text: str, rows: str | bytes | None = None) -> str:
    """Return the error of a profile, without the folder."""
    with pytest.raises(ConfigError) as caught:
        load_profile(write(folder, text, rows))
    return str(caught.value).replace(f"{folder}/", "")


def test_a_formula_is_read_exactly(tmp_path: Path) -> None:
    text = FACTS + (
        "tensor_parallel: 2\nstep_overhead: 1.75ms\nrequest_overhead: 0.025\n"
        "linear: {base: 10ms, per_decode: 1us, per_kv_token: 66.7ns, per_chunk_token: 21us, per_chunk_kv: 0.76ns,"
        " floor: 15ms}\n"
    )
    profile = otel_llm.scheduling.load_profile(write(tmp_path, text))
    assert isinstance(profile, LinearProfile)
    assert profile.name == "mine"
    assert (profile.model, profile.accelerator, profile.engine, profile.source) == ("m", "a", "e", "a test")
    assert (profile.tensor_parallel, profile.kv_tokens, profile.max_batch, profile.max_batched_tokens) == (
        2, 10_000, 64, 512,
    )  # fmt: skip
    assert (profile.step_overhead_ns, profile.request_overhead_ns) == (1_750_000, 25_000_000)
    chunk_kv = Fraction("0.76")
    assert profile.terms == Terms(
        Fraction(10_000_000), Fraction(1000), Fraction("66.7"), Fraction(21_000), chunk_kv, floor_ns=15_000_000
    )


def test_a_table_is_read_beside_its_file_in_any_order_of_rows_and_columns(tmp_path: Path) -> None:
    rows = "iteration_ms,decode_batch,prefill_chunk_tokens,decode_kv_tokens,prefill_prior_kv_tokens\r\n\r\n"
    rows += "2,2,0,400,0\r\n1.5,1,0,200,0\r\n1.25e0,2,0,200,0\r\n 1.0 ,1,0,100,0\r\n"
    profile = load_profile(str(write(tmp_path, FACTS + "table: mine.csv\n", "\ufeff" + rows)))
    assert profile.tensor_parallel == 1
    assert (profile.step_overhead_ns, profile.request_overhead_ns) == (0, 0)
    assert [profile.iteration_ns(*at) for at in ((1, 100), (1, 150), (2, 300), (2, 400))] == [
        1_000_000, 1_250_000, 1_625_000, 2_000_000,
    ]  # fmt: skip


FACTS_REFUSED = {
    "linear: {base: 1ms, per_token: 1us}": (
        "mine.yaml:9:21: linear.per_token: unknown key (did you mean per_kv_token?)"
    ),
    "modell: x\nlinear: {base: 1ms}": "mine.yaml:9:1: modell: unknown key (did you mean model?)",
    "": "mine.yaml:1:1: neither table nor linear (write `table: NAME.csv` or `linear: {base: ...}`)",
    "linear: {base: 1ms}\ntable: mine.csv": ("mine.yaml:9:1: linear: beside a table (keep one of table and linear)"),
    "linear: {base: -1ms}": (
        "mine.yaml:9:16: linear.base: a duration is not negative, '-1ms' is "
        "(write 0.76ns, 20us, 1.75ms, 1s or a number of seconds)"
    ),
    "linear: {base: -0.5}": (
        "mine.yaml:9:16: linear.base: a duration is not negative, -0.5 is "
        "(write 0.76ns, 20us, 1.75ms, 1s or a number of seconds)"
    ),
    "linear: {base: 1 fortnight}": (
        "mine.yaml:9:16: linear.base: '1 fortnight' is no duration "
        "(write 0.76ns, 20us, 1.75ms, 1s or a number of seconds)"
    ),
    "linear: {base: .nan}": "mine.yaml:9:16: linear.base: .nan is not a finite number (write a number)",
    "linear: {base: 1ms, floor: 0.4ns}": (
        "mine.yaml:9:28: linear.floor: an iteration lasts at least 1 ns (write 1ns or more, or leave it out)"
    ),
    "linear: {base: 1ms}\nstep_overhead: true": (
        "mine.yaml:10:16: step_overhead: True is no duration (write 0.76ns, 20us, 1.75ms, 1s or a number of seconds)"
    ),
    "linear: {base: 1000000h}": (
        "mine.yaml:9:16: linear.base: '1000000h' is more than 1000000000 seconds "
        "(write 0.76ns, 20us, 1.75ms, 1s or a number of seconds)"
    ),
    "linear: 5ms": "mine.yaml:9:9: linear: not a mapping (write `key: value` lines below it)",
    "table: 7": "mine.yaml:9:8: table: 7 is no name of a file (name a CSV file beside this one)",
    "tensor_parallel: 0\nlinear: {base: 1ms}": (
        "mine.yaml:9:18: tensor_parallel: 0 is no such number (write a whole number from 1 to 1000000000000)"
    ),
}


@pytest.mark.parametrize("more", FACTS_REFUSED)
def test_a_mistake_in_the_file_is_named_with_its_place_and_remedy(more: str, tmp_path: Path) -> None:
    assert refused(tmp_path, f"{FACTS}{more}\n", HEADER + ROWS) == FACTS_REFUSED[more]


@pytest.mark.parametrize("key", ["model", "accelerator", "engine", "kv_tokens", "max_batch", "source"])
def test_a_missing_fact_is_named(key: str, tmp_path: Path) -> None:
    text = "".join(line for line in FACTS.splitlines(keepends=True) if not line.startswith(f"{key}:"))
    assert refused(tmp_path, text + "linear: {base: 1ms}\n") == f"mine.yaml:1:1: {key}: missing (write `{key}: ...`)"


@pytest.mark.parametrize("size", ["0", "-1", "1.5", "true", "many", "1000000000001"])
def test_a_size_is_a_whole_number(size: str, tmp_path: Path) -> None:
    message = refused(tmp_path, FACTS.replace("max_batch: 64", f"max_batch: {size}") + "linear: {base: 1ms}\n")
    assert message.startswith("mine.yaml:6:12: max_batch: ")
    assert message.endswith("is no such number (write a whole number from 1 to 1000000000000)")


TABLES_REFUSED = {
    "": "mine.csv:1: decode_batch: the column is missing (begin with {header})",
    HEADER: "mine.csv:1: no measured iteration (write a row for each)",
    HEADER.replace("iteration_ms", "iteration_us") + ROWS: (
        "mine.csv:1: iteration_us: unknown column (did you mean iteration_ms?)"
    ),
    HEADER.replace("iteration_ms", "decode_batch") + ROWS: (
        "mine.csv:1: decode_batch: the column is there twice (begin with {header})"
    ),
    HEADER.replace(",iteration_ms", "") + ROWS: (
        "mine.csv:1: iteration_ms: the column is missing (begin with {header})"
    ),
    HEADER + "1,100,0,0\n": "mine.csv:2: 4 cells, where the header has 5 (write {header})",
    HEADER + ROWS.replace("1.25", "nan"): (
        "mine.csv:4: iteration_ms: 'nan' is no duration (write milliseconds above 0, as 5.81)"
    ),
    HEADER + ROWS.replace("1.25", "inf"): (
        "mine.csv:4: iteration_ms: 'inf' is no duration (write milliseconds above 0, as 5.81)"
    ),
    HEADER + ROWS.replace("1.25", "-1.25"): (
        "mine.csv:4: iteration_ms: '-1.25' is no duration (write milliseconds above 0, as 5.81)"
    ),
    HEADER + ROWS.replace("1.25", "0.0"): (
        "mine.csv:4: iteration_ms: '0.0' is no duration (write milliseconds above 0, as 5.81)"
    ),
    HEADER + ROWS.replace("1.25", ""): (
        "mine.csv:4: iteration_ms: '' is no duration (write milliseconds above 0, as 5.81)"
    ),
    HEADER + ROWS.replace("1.25", "1e99"): (
        "mine.csv:4: iteration_ms: '1e99' is no duration (write milliseconds above 0, as 5.81)"
    ),
    HEADER + ROWS.replace("2,200", "-2,200"): (
        "mine.csv:4: decode_batch: '-2' is no number of requests (write a whole number from 0 to 10^12 - 1)"
    ),
    HEADER + ROWS.replace("2,200", "2,200.5"): (
        "mine.csv:4: decode_kv_tokens: '200.5' is no number of tokens (write a whole number from 0 to 10^12 - 1)"
    ),
    HEADER + ROWS + "1,200,0,0,1.5\n": (
        "mine.csv:6: decode_batch 1, decode_kv_tokens 200, prefill_chunk_tokens 0, prefill_prior_kv_tokens 0 is there "
        "twice (remove it, or line 3)"
    ),
    HEADER + ROWS + "0,5,64,0,1.5\n": "mine.csv:6: no decodes, and 5 KV tokens of them (write decode_kv_tokens 0)",
    HEADER + ROWS + "1,100,0,5,1.5\n": "mine.csv:6: no chunk, and 5 tokens before it (write prefill_prior_kv_tokens 0)",
    # The context of 100 is missing with two decodes, not at the end.
    HEADER + "1,100,0,0,1\n1,200,0,0,1.5\n1,400,0,0,2\n2,200,0,0,1.25\n2,800,0,0,2\n": (
        "mine.csv:6: a gap: no row with decode_batch 2, decode_kv_tokens 400 before this one "
        "(measure every batch at the same KV / B, or at the same KV; the largest may be missing)"
    ),
    HEADER + "1,100,0,0,1\n1,200,0,0,1.5\n2,200,0,0,1.25\n": (
        "mine.csv:4: decode_batch 2 has one decode_kv_tokens (measure it at two at least)"
    ),
    HEADER + ROWS + "1,100,64,0,3\n": (
        "mine.csv:3: a gap: no row with decode_batch 1, decode_kv_tokens 200, prefill_chunk_tokens 64, "
        "prefill_prior_kv_tokens 0 (measure every batch at the same chunks and priors)"
    ),
    HEADER + "0,0,64,0,3\n0,0,64,512,3\n0,0,128,0,4\n": (
        "mine.csv:2: a gap: no row with decode_batch 0, decode_kv_tokens 0, prefill_chunk_tokens 128, "
        "prefill_prior_kv_tokens 512 (measure every batch at the same chunks and priors)"
    ),
    HEADER + ROWS.replace("200,0,0,1.5", "200,0,0,0.89"): (
        "mine.csv:3: 0.89 ms are less than the 1 ms of line 2, with a smaller decode_kv_tokens "
        "(measure both again; dips of up to 10 % are accepted)"
    ),
    HEADER + ROWS.replace("1.25", "0.75"): (
        "mine.csv:4: 0.75 ms are less than the 1 ms of line 2, with a smaller decode_batch "
        "(measure both again; dips of up to 10 % are accepted)"
    ),
    HEADER + "0,0,64,0,3\n0,0,128,0,4\n0,0,256,0,3.5\n": (
        "mine.csv:4: 3.5 ms are less than the 4 ms of line 3, with a smaller prefill_chunk_tokens "
        "(measure both again; dips of up to 10 % are accepted)"
    ),
    # Small dips that add up, against the highest before.
    HEADER + "0,0,64,0,3\n0,0,128,0,2.8\n0,0,256,0,2.6\n": (
        "mine.csv:4: 2.6 ms are less than the 3 ms of line 2, with a smaller prefill_chunk_tokens "
        "(measure both again; dips of up to 10 % are accepted)"
    ),
    HEADER + "0,0,64,0,3\n0,0,64,512,2\n": (
        "mine.csv:3: 2 ms are less than the 3 ms of line 2, with a smaller prefill_prior_kv_tokens "
        "(measure both again; dips of up to 10 % are accepted)"
    ),
    HEADER + '1,"100,0,0,1\n': "mine.csv:2: not CSV: unexpected end of data (quote no cell)",
}


@pytest.mark.parametrize("rows", TABLES_REFUSED)
def test_a_mistake_in_the_table_is_named_with_its_line_and_remedy(rows: str, tmp_path: Path) -> None:
    expected = TABLES_REFUSED[rows].format(header=HEADER.strip())
    assert refused(tmp_path, FACTS + "table: mine.csv\n", rows) == expected


def test_a_small_dip_is_accepted(tmp_path: Path) -> None:
    path = write(tmp_path, FACTS + "table: mine.csv\n", HEADER + ROWS.replace("200,0,0,1.5", "200,0,0,0.9"))
    assert load_profile(path).iteration_ns(1, 150) == 950_000


def test_bytes_that_are_no_text_and_a_table_that_is_too_large(tmp_path: Path) -> None:
    text = FACTS + "table: mine.csv\n"
    bad = HEADER.encode() + b"1,100,0,0,\xff\n"
    assert refused(tmp_path, text, bad) == "mine.csv:2: not UTF-8 (save the file as UTF-8)"
    with pytest.raises(ConfigError, match="more than 40 bytes"):
        read_grid(tmp_path / "mine.csv", max_bytes=40)


def test_a_file_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    message = refused(tmp_path, FACTS + "table: other.csv\n")
    assert message == "other.csv: No such file or directory (name a CSV file that can be read)"
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnreadableConfigError) as caught:
        load_profile("h200-llama-3.1-8")
    assert str(caught.value) == (
        "h200-llama-3.1-8: no profile that ships has this name "
        "(did you mean h200-llama-3.1-8b?; or name a file as ./h200-llama-3.1-8.yaml)"
    )
    with pytest.raises(UnreadableConfigError, match=r"none\.yaml: No such file"):
        load_profile(tmp_path / "none.yaml")


def test_a_file_of_another_kind_is_named(tmp_path: Path) -> None:
    message = refused(tmp_path, "version: 1\ngroups: []\n")
    assert message == "mine.yaml:2:1: groups: rules, and no profile (give this file with --rules)"


@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
def test_any_bytes_are_a_table_or_a_config_error(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    path = tmp_path_factory.mktemp("any") / "any.csv"
    path.write_bytes(HEADER.encode() + raw)
    with suppress(ConfigError):
        read_grid(path)


@pytest.mark.parametrize(
    ("text", "length_ns"),
    [("0.76ns", "0.76"), ("1us", "1000"), ("1.75ms", "1750000"), ("2s", "2000000000"), (0.1, "100000000"), (0, "0")],
)
def test_durations_are_exact(text: object, length_ns: str) -> None:
    assert exact_duration_ns(text) == Fraction(length_ns)
