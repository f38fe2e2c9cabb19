"""CSV of token times: worked lines, what each column says, what is missing, and lines that are wrong."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from support.formats.streams import streams_of

from otel_llm.formats.assemble.resolved import Assembled
from otel_llm.formats.input_paths import input_files
from otel_llm.formats.io.skipped import Skipped
from otel_llm.formats.records import InputError

S = 10**9


def read(folder: Path, text: str) -> tuple[dict[str, Assembled], Skipped]:
    """Return the streams by their model, and what was skipped."""
    path = folder / "x"
    path.write_text(text)
    skipped = Skipped()
    return {one.resolved.model or "": one for one in streams_of(path, skipped)}, skipped


def test_two_columns_are_enough_and_then_each_request_begins_at_its_own_zero(tmp_path: Path) -> None:
    found, skipped = read(tmp_path, "request,t_seconds\na,0.2\na,0.25\na,0.1\n")
    one = found[""]
    assert one.events.expanded()[0] == [100_000_000, 200_000_000, 250_000_000]
    assert (one.resolved.commit_ns, one.resolved.end_ns, one.resolved.outcome) == (0, 250_000_000, "completed")
    assert (one.resolved.measured_at, one.resolved.token_basis, one.kinds) == ("client", "exact", None)
    assert (one.resolved.complete, one.resolved.coverage) == (True, 1.0)
    assert skipped.anomalies == Counter({"anomaly.no_start_times": 1, "anomaly.outcome_unknown": 1})
    assert skipped.counts == Counter()


def test_every_column_says_what_it_says(tmp_path: Path) -> None:
    found, skipped = read(
        tmp_path,
        "model;end_s;request;tokens;kind;t_seconds;other;commit_s;class;instance;outcome;measured_at;token_basis;input_tokens\n"
        "m;;a;3;reasoning;1790000001.000000001;x;;;;;;;\n"
        "m;1790000009;a;;;1790000002;x;1790000000.5;voice;gpu-1;error;server;chunk;77\n",
    )
    one = found["m"]
    r = one.resolved
    assert one.events.expanded()[0] == [1790000001 * S + 1] * 3 + [1790000002 * S]
    assert (one.kinds, one.counts and list(one.counts)) == (bytes([1, 0]), [3, 1])
    assert (r.commit_ns, r.end_ns) == (1790000000 * S + S // 2, 1790000009 * S)
    assert (r.declared_class, r.instance, r.outcome, r.measured_at) == ("voice", "gpu-1", "error", "server")
    assert (r.token_basis, r.input_tokens, r.known_tokens) == ("chunk", 77, 4)
    assert skipped == Skipped()


def test_a_clock_that_is_not_the_wall_clock_is_reported(tmp_path: Path) -> None:
    _, skipped = read(tmp_path, "request,t_seconds,commit_s\na,3500.5,3500.1\nb,1790000001,1790000000\n")
    assert skipped.anomalies == Counter({"anomaly.clock_unanchored": 1, "anomaly.outcome_unknown": 2})


def test_a_request_without_tokens_and_one_that_ends_before_it_begins(tmp_path: Path) -> None:
    text = (
        "request,t_seconds,commit_s,end_s,outcome,model\n"
        "a,,1790000000,1790000003,error,x\n"
        "b,1790000002,1790000001,1790000000,,y\n"
    )
    found, skipped = read(tmp_path, text)
    assert (found["x"].events.expanded()[0], found["x"].resolved.end_ns, found["x"].resolved.outcome) == (
        [],
        1790000003 * S,
        "error",
    )
    assert found["y"].resolved.end_ns == 1790000002 * S
    assert skipped.anomalies == Counter({"anomaly.end_before_start": 1, "anomaly.outcome_unknown": 1})


def test_ids_are_those_of_name_and_commit_alone(tmp_path: Path) -> None:
    first, _ = read(tmp_path, "request,t_seconds,commit_s,model\nb,2,1,b\na,3,1,a\n")
    again, _ = read(tmp_path, "request,t_seconds,commit_s,model\na,3,1,a\nb,2.5,1,b\n")
    assert {name: one.resolved.key for name, one in first.items()} == {
        name: one.resolved.key for name, one in again.items()
    }
    assert len({one.resolved.key for one in first.values()}) == 2


WRONG = {
    "a,x": "t_seconds: expected a number of seconds",
    "a,NaN": "t_seconds: expected a number",
    "a,1e20": "t_seconds: expected a number",
    "a,1,2": "3 columns where the header has 2",
    ",1": "request: expected a name",
    '"a,1': "",
}


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_line_costs_itself_and_is_named(tmp_path: Path, line: str) -> None:
    found, skipped = read(tmp_path, f"request,t_seconds\nok,1\n{line}\n" + ("" if '"' in line else "ok,2\n"))
    assert found[""].events.expanded()[0] == ([1 * S] if '"' in line else [1 * S, 2 * S])
    assert skipped.counts == Counter(bad_record=1)
    assert f"{tmp_path / 'x'}:3: {WRONG[line]}" in skipped.notes[0]


@pytest.mark.parametrize(
    ("column", "value"),
    [("kind", "word"), ("outcome", "fine"), ("tokens", "-1"), ("tokens", "1.5"), ("input_tokens", "x")],
)
def test_words_and_counts_must_be_ones(tmp_path: Path, column: str, value: str) -> None:
    with pytest.raises(InputError, match=f":2: {column}: expected"):
        read(tmp_path, f"request,t_seconds,{column}\na,1,{value}\n")


def test_a_last_line_that_is_cut_is_torn(tmp_path: Path) -> None:
    found, skipped = read(tmp_path, "request,t_seconds\na,1\na,")
    assert found[""].events.expanded()[0] == [1 * S]
    found, skipped = read(tmp_path, "request,t_seconds\na,1\na")
    assert skipped.counts == Counter(torn_tail=1)
    assert skipped.broken == 0


def test_quoting_line_ends_and_a_byte_order_mark_are_the_csv_modules(tmp_path: Path) -> None:
    text = '\ufeff"request","t_seconds","model"\r\n"a, ""b""",1,"x\ny"\r\n"a, ""b""",2,\r\n\r\n'
    found, skipped = read(tmp_path, text)
    assert found["x\ny"].events.expanded()[0] == [1 * S, 2 * S]
    assert skipped.counts == Counter()


def test_a_column_twice_is_refused_and_any_other_csv_is_unknown(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r":1: the column t_seconds stands there twice"):
        read(tmp_path, "request,t_seconds,t_seconds\na,1,2\n")
    (tmp_path / "x").write_text("time,tokens\n1,2\n")
    with pytest.raises(InputError, match=r"x: not a recording"):
        streams_of(tmp_path / "x", Skipped())
    with pytest.raises(InputError, match="holds no format that we know"):
        input_files([tmp_path], Skipped())
