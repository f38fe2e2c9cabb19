"""The whole audit path: every format of input gives the same, and what the contract says, row by row."""

from __future__ import annotations

import contextlib
import gzip
import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import pytest
import zstandard
from support.otlp import T0_NS, Value, export, request_span, segment_span, stream_spans
from support.recordings import FORMATS, json_lines, vector_classes, vector_messages, write_format
from support.vectors import FOLDER, document, vectors

import otel_llm.audit
from otel_llm import semconv
from otel_llm.audit import Audit
from otel_llm.audit.input import parquet_streams
from otel_llm.audit.report.report import render
from otel_llm.config.yaml_file import ConfigError
from otel_llm.formats.io.journal_format import frame
from otel_llm.formats.records import InputError
from otel_llm.slo.classes import Curve, Fluidity, Objective, SloClass, SloClasses, UnknownClassError
from otel_llm.slo.metrics import REQUESTS, WINDOWS

ROWS = FOLDER / "rows.jsonl"
EXPECTED = [json.loads(line) for line in (FOLDER / "rows.expect.jsonl").read_text().splitlines()]


def same(found: object, wanted: object) -> bool:
    if isinstance(wanted, float) and isinstance(found, float):
        return math.isclose(found, wanted, rel_tol=0, abs_tol=1e-9)
    return found == wanted and type(found) is type(wanted)


@pytest.fixture(scope="module")
def audited() -> Audit:
    return otel_llm.audit.load(ROWS, window="10s")


def test_there_is_a_row_for_each_request_in_the_contracts_order(audited: Audit) -> None:
    assert [row["trace_id"] for row in audited.rows] == [one["trace_id"] for one in EXPECTED]
    assert all(list(row) == list(REQUESTS) for row in audited.rows)


@pytest.mark.parametrize("index", range(len(EXPECTED)), ids=[one["why"] for one in EXPECTED])
def test_rows_are_built_as_the_contract_shows(audited: Audit, index: int) -> None:
    wanted = {name: value for name, value in EXPECTED[index].items() if name != "why"}
    found = audited.rows[index]

    assert {name for name in wanted if not same(found[name], wanted[name])} == set()
    assert set(wanted) == set(found)


@pytest.fixture(scope="module", params=FORMATS)
def by_format(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Audit:
    path = write_format(tmp_path_factory.mktemp("file_format"), request.param, vector_messages())
    return otel_llm.audit.load(path, slo=vector_classes())


@pytest.mark.parametrize("number", range(len(vectors())), ids=[one.name for one in vectors()])
def test_every_vector_through_every_format(by_format: Audit, number: int) -> None:
    row = next(row for row in by_format.rows if row["trace_id"] == f"{number + 1:032x}")
    expect = vectors()[number].expect

    assert row["slo_class"] == f"v{number}"
    assert row["outcome"] == vectors()[number].outcome
    assert {name: row[name] for name, wanted in expect.items() if not same(row[name], wanted)} == {}


@pytest.mark.parametrize("expect", document()["fluid_token_rate"]["expect"], ids=lambda one: str(one["share"]))
def test_the_fluid_token_rate_of_the_worked_requests(tmp_path: Path, expect: dict[str, float]) -> None:
    promise = Objective(Fraction(str(expect["fluidity_index"])), Fraction(str(expect["share"])))
    classes = SloClasses((SloClass(name="f", objective=promise),), "f")
    messages = [
        export(*stream_spans([T0_NS + at for at in tokens], request=number, end_ns=T0_NS + max(tokens, default=0)))
        for number, tokens in enumerate(document()["fluid_token_rate"]["requests_ns"], start=1)
    ]
    audit = otel_llm.audit.load(write_format(tmp_path, "journal.otlp", messages), slo=classes)

    found = audit.summary()["classes"]["f"]["client"]["fluid_token_rate"]
    assert found == pytest.approx(expect["tokens_per_s"], abs=1e-9)


def test_every_format_gives_the_same_windows(by_format: Audit, tmp_path: Path) -> None:
    path = write_format(tmp_path, "traces.jsonl", vector_messages())
    assert by_format.window_rows == otel_llm.audit.load(path, slo=vector_classes()).window_rows


def test_the_windows_of_a_request_add_up_to_its_benefit(by_format: Audit) -> None:
    for number, one in enumerate(vectors()):
        mine = [row for row in by_format.window_rows if row["slo_class"] == f"v{number}"]
        assert sum(cell(row, "requests_ended") for row in mine) == 1
        assert sum(cell(row, "tokens_read") for row in mine) == (
            one.expect["tokens_read"] if one.expect["benefit"] is not None else 0
        )
        smooth = math.fsum(cell(row, "smooth_goodput_tok_s") * cell(row, "window_s") for row in mine)
        assert smooth == pytest.approx(one.expect["benefit"] or 0.0, abs=1e-6)
        assert sum(cell(row, "idle_s_sum") for row in mine) == pytest.approx(one.expect["idle_s"] or 0.0, abs=1e-6)
        assert all(list(row) == list(WINDOWS) for row in mine)


def cell(row: Any, name: str) -> Any:
    return row[name]


@pytest.mark.parametrize("length", ["1s", 0.25, "1m"])
def test_windows_add_up_whatever_their_length(tmp_path: Path, length: str | float) -> None:
    path = write_format(tmp_path, "journal.otlp", vector_messages())
    audit = otel_llm.audit.load(path, slo=vector_classes(), window=length)

    total = math.fsum(cell(row, "smooth_goodput_tok_s") * cell(row, "window_s") for row in audit.window_rows)
    assert total == pytest.approx(math.fsum(one.expect["benefit"] or 0.0 for one in vectors()), abs=1e-6)
    assert sum(cell(row, "requests_started") for row in audit.window_rows) == len(vectors())


def test_windows_are_in_order_of_time_and_group(audited: Audit) -> None:
    keys = [(cell(row, "window_start_unix_nano"), row["model"] is None) for row in audited.window_rows]
    assert keys == sorted(keys)
    assert keys[0][1] < keys[-1][1], "an unknown model comes last"
    assert audited.windows["requests_ended"].sum() == len(EXPECTED)


def test_frames_hold_the_rows(audited: Audit) -> None:
    assert list(audited.requests.columns) == list(REQUESTS)
    assert len(audited.requests) == len(EXPECTED)
    assert audited.requests["met"].sum() == sum(one["met"] is True for one in EXPECTED)
    assert list(audited.windows.columns) == list(WINDOWS)


def test_a_class_given_judges_every_request(tmp_path: Path) -> None:
    audit = otel_llm.audit.load(ROWS, class_name="agent")

    assert {row["slo_class"] for row in audit.rows} == {"agent"}
    with pytest.raises(UnknownClassError, match="no SLO class 'nobody'"):
        otel_llm.audit.load(ROWS, class_name="nobody")
    with pytest.raises(ConfigError, match=r"nothing\.yaml"):
        otel_llm.audit.load(ROWS, slo=tmp_path / "nothing.yaml")


def test_several_inputs_and_compressed_ones_are_one_input(tmp_path: Path) -> None:
    messages = vector_messages()
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(json_lines(messages[:20])))
    (tmp_path / "b.jsonl.zst").write_bytes(zstandard.compress(json_lines(messages[20:])))
    whole = write_format(tmp_path, "journal.otlp", messages)

    parts = otel_llm.audit.load(tmp_path / "a.jsonl.gz", tmp_path / "b.jsonl.zst", slo=vector_classes())
    assert parts.rows == otel_llm.audit.load(whole, slo=vector_classes()).rows
    twice = otel_llm.audit.load(whole, tmp_path / "a.jsonl.gz", slo=vector_classes())
    assert twice.rows == parts.rows
    assert twice.counts["duplicate_segments"] > 0


@pytest.mark.parametrize("file_format", ["journal.otlp", "collector.binpb"])
def test_a_torn_tail_costs_itself_and_is_counted(tmp_path: Path, file_format: str) -> None:
    path = write_format(tmp_path, file_format, vector_messages())
    path.write_bytes(path.read_bytes()[:-5])
    audit = otel_llm.audit.load(path, slo=vector_classes())

    assert len(audit.rows) == len(vectors()) - 1
    assert audit.summary()["skipped"] == 1
    assert audit.skipped.broken == 0


def test_a_damaged_record_costs_itself_and_is_counted(tmp_path: Path) -> None:
    path = write_format(tmp_path, "journal.otlp", vector_messages())
    data = bytearray(path.read_bytes())
    data[200] ^= 0xFF
    path.write_bytes(bytes(data))
    audit = otel_llm.audit.load(path, slo=vector_classes())

    assert len(audit.rows) == len(vectors()) - 1
    assert audit.summary()["skipped"] == audit.skipped.broken == 1


def test_nothing_to_read_is_reported_so(tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_bytes(b"")
    with pytest.raises(InputError, match="no export request found"):
        otel_llm.audit.load(empty)
    with pytest.raises(InputError, match="no such file"):
        otel_llm.audit.load(tmp_path / "none")
    with pytest.raises(InputError, match="no path"):
        otel_llm.audit.load()


def test_telemetry_without_a_stream_gives_an_empty_audit(tmp_path: Path) -> None:
    path = tmp_path / "other.pb"
    other = segment_span(0, 0)
    other.name = "GET /"
    path.write_bytes(export(other).SerializeToString())
    audit = otel_llm.audit.load(path)

    assert (audit.rows, audit.window_rows, audit.counts["ignored"]) == ([], [], 1)
    assert audit.summary()["classes"] == {}
    assert len(audit.requests) == len(audit.windows) == 0


def test_a_window_of_no_length_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        otel_llm.audit.load(ROWS, window=0)
    with pytest.raises(ValueError, match="no duration"):
        otel_llm.audit.load(ROWS, window="soon")


def test_a_stream_of_years_costs_a_bounded_number_of_windows(tmp_path: Path) -> None:
    end_ns = T0_NS + 10**18
    path = tmp_path / "long.pb"
    spans = stream_spans([T0_NS + 10**9, end_ns - 10**9], end_ns=end_ns, outcome="error")
    path.write_bytes(export(*spans).SerializeToString())
    audit = otel_llm.audit.load(path)

    assert audit.counts["not_spread"] == 1
    assert len(audit.window_rows) <= 20_002
    total = math.fsum(cell(row, "smooth_goodput_tok_s") * 10 for row in audit.window_rows)
    assert total == pytest.approx(audit.rows[0]["benefit"], rel=1e-9)


def test_a_clock_far_off_is_shifted_into_its_windows_and_counted(tmp_path: Path) -> None:
    # An hour behind, in two windows: what it owes each must follow the shift.
    tokens = [T0_NS + 10**8, T0_NS + 12 * 10**9]
    late_ns = 3600 * 10**9
    path = tmp_path / "j.otlp"
    spans = stream_spans(tokens, end_ns=tokens[-1], segment_tokens=1)
    records = [frame(export(one).SerializeToString(), one.end_time_unix_nano + late_ns) for one in spans]
    path.write_bytes(b"".join(records))
    audit = otel_llm.audit.load(path, window="10s")

    start_ns = T0_NS + late_ns
    assert audit.counts["shifted"] == 1
    assert [(cell(row, "window_start_unix_nano") - start_ns, row["tokens_read"]) for row in audit.window_rows] == [
        (0, 1),
        (10**10, 1),
    ]
    assert [row["idle_s_sum"] for row in audit.window_rows] == [pytest.approx(9.6), pytest.approx(2.0)]
    assert audit.rows[0]["start_unix_nano"] == T0_NS


def test_a_span_of_others_has_a_row_and_is_in_no_window(tmp_path: Path) -> None:
    path = tmp_path / "foreign.pb"
    attributes: dict[str, Value] = {
        semconv.GEN_AI_OPERATION_NAME: "chat",
        semconv.GEN_AI_REQUEST_MODEL: "m",
        semconv.GEN_AI_LATENCY_TTFT: 0.25,
        semconv.GEN_AI_LATENCY_E2E: 1.5,
    }
    path.write_bytes(export(request_span(attributes=attributes)).SerializeToString())
    audit = otel_llm.audit.load(path)

    (row,) = audit.rows
    assert (row["ttft_s"], row["e2e_s"], row["tokens"], row["choice"], row["met"]) == (0.25, 1.5, None, None, None)
    assert audit.window_rows == []
    assert audit.summary()["classes"]["chat"]["client"]["ttft_p50_s"] == 0.25


@pytest.mark.parametrize(("prompt", "first"), [(100, 1), (2000, 0), (None, None)])
def test_a_first_token_curve_takes_the_prompt_s_length(tmp_path: Path, prompt: int | None, first: int | None) -> None:
    curve = Fluidity(ttft=Curve(((1000, 100_000_000), (2000, 10**9))))
    classes = SloClasses((SloClass(name="c", fluidity=curve),), "c")
    identity: dict[str, Value] = {} if prompt is None else {semconv.GEN_AI_USAGE_INPUT_TOKENS: prompt}
    tokens = [T0_NS + 140 * 10**6]
    path = tmp_path / "c.pb"
    path.write_bytes(export(*stream_spans(tokens, end_ns=tokens[0], identity=identity)).SerializeToString())

    assert otel_llm.audit.load(path, slo=classes).rows[0]["deadline_misses"] == first


def test_progress_rises_to_the_size_of_the_input(tmp_path: Path) -> None:
    path = write_format(tmp_path, "journal.otlp", vector_messages())
    seen: list[int] = []
    otel_llm.audit.load(path, slo=vector_classes(), progress=seen.append)

    assert seen == sorted(seen)
    assert 0 < seen[-1] <= path.stat().st_size
    assert seen[-1] > 0.9 * path.stat().st_size


def test_an_unknown_class_name_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "u.pb"
    identity: dict[str, Value] = {semconv.SLO_CLASS: "nope", semconv.GEN_AI_OPERATION_NAME: "chat"}
    path.write_bytes(export(*stream_spans([T0_NS + 1], end_ns=T0_NS + 1, identity=identity)).SerializeToString())
    audit = otel_llm.audit.load(path)

    assert audit.counts["unknown_class"] == 1
    assert audit.rows[0]["slo_class"] == "chat"


def test_where_nobody_says_when_requests_were_sent_there_is_no_span_and_no_rate(tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    path.write_text("request,t_seconds\na,0.2\na,0.25\nb,0.1\n")
    summary = otel_llm.audit.load(path).summary()

    assert (summary["requests"], summary["tokens"], summary["span_s"]) == (2, 3, None)
    (found,) = summary["classes"]["chat"].values()
    assert {name for name, value in found.items() if value is None} == {
        name for name in found if name.endswith(("_tok_s", "_req_s"))
    }
    reported = tmp_path / "said.csv"
    reported.write_text("request,t_seconds,commit_s\na,1790000000.2,1790000000\n")
    assert otel_llm.audit.load(reported).summary()["span_s"] == pytest.approx(0.2)


CHUNKS = """request,t_seconds,commit_s,token_basis,output_tokens,reasoning_tokens
a,1.0,0.5,chunk,6,
a,2.0,,,,
b,1.0,0.5,,6,
c,1.0,0.5,estimated,9,
"""


@pytest.mark.parametrize(
    ("tokens", "rows"),
    [
        ("stated", [(6, 2, "estimated"), (1, 1, "exact"), (1, 1, "estimated")]),
        ("recorded", [(2, 2, "chunk"), (1, 1, "exact"), (1, 1, "estimated")]),
    ],
)
def test_the_stated_total_is_judged_unless_the_recorded_tokens_are_asked_for(
    tokens: Literal["stated", "recorded"], rows: list[tuple[int, int, str]], tmp_path: Path
) -> None:
    path = tmp_path / "chunks.csv"
    path.write_text(CHUNKS)
    found = otel_llm.audit.load(path, tokens=tokens)
    assert sorted((row["tokens"], row["tokens_recorded"], row["token_basis"]) for row in found.rows) == sorted(rows)


def test_a_delivery_is_drawn_with_the_tokens_that_were_judged(tmp_path: Path) -> None:
    path = tmp_path / "chunks.csv"
    path.write_text("".join(CHUNKS.splitlines(keepends=True)[:3]))
    found = otel_llm.audit.load(path)
    delivery = found.delivery(0)
    assert delivery is not None
    assert len(delivery.times_ns) == 6


def test_what_a_recording_says_of_prompt_queue_and_prefill_is_in_its_row(tmp_path: Path) -> None:
    identity: dict[str, Value] = {
        semconv.GEN_AI_USAGE_INPUT_TOKENS: 1200,
        semconv.GEN_AI_LATENCY_QUEUE: 0.25,
        semconv.GEN_AI_LATENCY_PREFILL: 0.125,
    }
    path = tmp_path / "engine.pb"
    tokens = [T0_NS + 10**9, T0_NS + 2 * 10**9]
    spans = [*stream_spans(tokens, end_ns=tokens[-1], identity=identity), request_span(attributes=identity)]
    path.write_bytes(export(*spans).SerializeToString())
    wanted = (1200, 0.25, 0.125)
    (row,) = otel_llm.audit.load(path).rows
    assert (row["input_tokens"], row["queue_s"], row["prefill_s"]) == wanted

    with (tmp_path / "streams.parquet").open("wb") as file, contextlib.closing(parquet_streams.Writer(file)) as writer:
        for batch in otel_llm.audit.load_streams(path):
            writer.write(batch)
    (again,) = otel_llm.audit.load(tmp_path / "streams.parquet").rows
    assert (again["input_tokens"], again["queue_s"], again["prefill_s"]) == wanted
    page = render(otel_llm.audit.load(path))
    assert all(f"<dt>{name}</dt>" in page for name in ("prompt tokens", "queue", "prefill"))
    assert "Time in the queue of the engine or relay" in page
