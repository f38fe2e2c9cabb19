"""AIPerf's records and raw records: outcomes, thoughts, several tokens in a chunk, and what is left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.formats.bench_files import (
    NS,
    UPTIME_NS,
    WALL_NS,
    Chunk,
    Requested,
    aiperf_metadata,
    aiperf_raw_line,
    aiperf_record,
)
from support.formats.bench_read import judged, read
from support.recordings import read_inputs

from otel_llm.formats.assemble.resolved import Assembled
from otel_llm.formats.files import read_file
from otel_llm.formats.input_paths import input_files
from otel_llm.formats.io.skipped import Skipped
from otel_llm.formats.records import InputError

MS = 1_000_000
SUMMARY = ("schema_version", "aiperf_version", "benchmark_id")
REQUESTED = Requested(NS, (Chunk(200 * MS), Chunk(260 * MS, 3)))
START_NS = WALL_NS + NS


def lines(*records: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def event(after_ns: int, value: Any, name: str = "data") -> dict[str, Any]:
    text = value if isinstance(value, str) else json.dumps(value)
    return {"perf_ns": UPTIME_NS + NS + after_ns, "packets": [{"name": name, "value": text}]}


def delta(**content: Any) -> dict[str, Any]:
    index = content.pop("index", 0)
    return {"choices": [{"index": index, "delta": content, "finish_reason": None}]}


def test_units_are_read_not_assumed() -> None:
    record = aiperf_record(REQUESTED)
    record["metrics"]["time_to_first_token"] = {"value": 0.2, "unit": "sec"}
    record["metrics"]["inter_chunk_latency"] = {"value": [60_000_000], "unit": "ns"}
    assert read(lines(record))[0][0].times_ns == [START_NS + 200 * MS, START_NS + 260 * MS]
    record["metrics"]["time_to_first_token"]["unit"] = "tokens"
    _, skipped = read(lines(record))
    assert skipped.notes == ["result.json:1: a unit of time that is none: 'tokens'"]


def test_thoughts_are_recognised_by_the_first_token_of_output() -> None:
    record = aiperf_record(Requested(NS, (Chunk(200 * MS), Chunk(230 * MS), Chunk(260 * MS))))
    record["metrics"]["time_to_first_output_token"] = {"value": 260.0, "unit": "ms"}
    (row,) = judged(read(lines(record))[0])
    assert (row["tokens"], row["tokens_read"], row["ttft_s"], row["ttfo_s"]) == (3, 1, 0.2, 0.26)


def test_an_error_keeps_its_end_and_no_more_in_records() -> None:
    record = {
        "metadata": aiperf_metadata(REQUESTED, 0),
        "metrics": {},
        "error": {"code": 500, "type": "x", "message": "y"},
    }
    streams, skipped = read(lines(record))
    (row,) = judged(streams)
    assert (row["outcome"], row["e2e_s"], row["tokens"], row["ttft_s"]) == ("error", 0.26, None, None)
    assert skipped.anomalies == {"anomaly.token_times_not_kept": 1}


def test_an_error_keeps_the_chunks_before_it_in_raw_records() -> None:
    line = aiperf_raw_line(REQUESTED, error={"code": None, "type": "ClientPayloadError", "message": "cut"})
    line["responses"] = line["responses"][:2]
    line["metadata"]["request_end_ns"] = START_NS + 3 * NS
    (row,) = judged(read(lines(line))[0])
    assert (row["outcome"], row["tokens"], row["met"], row["e2e_s"]) == ("error", 1, False, 3.0)
    assert row["idle_s"] is not None


def test_a_cancelled_request_has_lost_its_chunks() -> None:
    late = {"was_cancelled": True, "cancellation_time_ns": START_NS + NS}
    error = {"code": 499, "type": "RequestCancellationError", "message": ""}
    record = {"metadata": aiperf_metadata(REQUESTED, 0, **late), "metrics": {}, "error": error}
    raw = aiperf_raw_line(REQUESTED, 1, error=error, responses=None) | {
        "metadata": aiperf_metadata(REQUESTED, 1, **late)
    }
    for row in judged(read(lines(record, raw))[0]):
        assert (row["outcome"], row["e2e_s"], row["tokens"], row["met"]) == ("cancelled", 1.0, None, None)


def test_the_warm_up_is_left_out_and_counted() -> None:
    warm = {"metadata": aiperf_metadata(REQUESTED, 0, benchmark_phase="warmup"), "metrics": {}}
    streams, skipped = read(lines(warm, aiperf_record(REQUESTED, 1)))
    assert len(streams) == 1
    assert skipped.counts == {"warmup": 1}
    assert skipped.broken == 0


def test_only_what_was_generated_counts_in_raw_records() -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}}
    reported = [
        event(100 * MS, "", name="comment"),
        event(200 * MS, delta(role="assistant", content="")),
        event(210 * MS, delta(reasoning_content="hm")),
        event(220 * MS, delta(content="a")),
        event(220 * MS, delta(content="b")),
        event(230 * MS, delta(tool_calls=[{"function": {"arguments": "{"}}])),
        event(240 * MS, usage),
        event(240 * MS, "[DONE]"),
    ]
    (one,) = read(lines(aiperf_raw_line(REQUESTED, responses=reported)))[0]
    assert one.events.expanded()[0] == [START_NS + after * MS for after in (210, 220, 220, 230)]
    assert one.kinds == bytes([1, 0, 0, 2])
    assert (one.resolved.token_basis, one.resolved.input_tokens) == ("chunk", 9)


def test_choices_are_streams_of_their_own() -> None:
    reported = [event(10, delta(content="a")), event(20, delta(index=1, content="b")), event(30, delta(content="c"))]
    streams, _ = read(lines(aiperf_raw_line(REQUESTED, responses=reported)))
    assert [(one.resolved.choice, one.tokens) for one in streams] == [(0, 2), (1, 1)]
    assert len({one.resolved.trace_id for one in streams}) == 1


@pytest.mark.parametrize("choices", [3, True, {}, "ab", None])
def test_a_chunk_whose_choices_are_no_list_is_no_token(choices: Any) -> None:
    reported = [event(10, delta(content="a")), event(20, {"choices": choices}), event(30, delta(content="b"))]
    (one,) = read(lines(aiperf_raw_line(REQUESTED, responses=reported)))[0]
    assert one.events.expanded()[0] == [START_NS + 10, START_NS + 30]


def test_a_reply_in_one_piece_came_with_all_its_tokens() -> None:
    body = {"choices": [{"message": {"content": "abc"}}], "usage": {"prompt_tokens": 9, "completion_tokens": 3}}
    whole = {"perf_ns": UPTIME_NS + NS + 70, "text": json.dumps(body), "content_type": "application/json"}
    (one,) = read(lines(aiperf_raw_line(REQUESTED, responses=[whole])))[0]
    assert (one.events.expanded()[0], one.resolved.token_basis) == ([START_NS + 70] * 3, "exact")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"{]\n", "not JSON"),
        (b'{"metrics": {}}\n', "no metadata.request_start_ns"),
        (
            lines({"metadata": aiperf_metadata(REQUESTED, 0) | {"request_start_ns": "x"}}),
            "request_start_ns is no number",
        ),
        (lines(aiperf_raw_line(REQUESTED, responses=[{"perf_ns": 5}])), "neither packets nor the text"),
        (lines(aiperf_raw_line(REQUESTED, responses=[event(5, {"odd": 1})])), "an API that we do not know"),
        (lines(aiperf_raw_line(REQUESTED, start_perf_ns=None)), "start_perf_ns is no number"),
    ],
)
def test_a_broken_line_costs_itself(line: bytes, why: str) -> None:
    good = lines(aiperf_record(REQUESTED))
    streams, skipped = read(good + line + good)
    assert len(streams) == 2
    assert skipped.counts == {"bad_record": 1}
    assert skipped.notes[0].startswith("result.json:2: ")
    assert why in skipped.notes[0]


@pytest.mark.parametrize("claim", [10, 10**9, 10**12, -1])
def test_a_count_that_a_text_cannot_hold_is_not_used(claim: int) -> None:
    reply = event(5, delta(content="a") | {"usage": {"completion_tokens": claim}})
    [stream], skipped = read(lines(aiperf_raw_line(REQUESTED, responses=[reply])))
    assert (stream.tokens, skipped.counts) == (1, {})


def test_a_cut_last_line_is_torn() -> None:
    good = lines(aiperf_record(REQUESTED))
    streams, skipped = read(good + good[:-30])
    assert (len(streams), skipped.counts) == (1, {"torn_tail": 1})


@pytest.mark.parametrize("indent", [None, 2])
def test_the_summary_is_refused_with_the_level_to_ask_for(indent: int | None) -> None:
    summary = {"schema_version": "1.4", "aiperf_version": "0.13.0", "benchmark_id": "b"}
    with pytest.raises(InputError, match="--export-level records"):
        read(json.dumps(summary, indent=indent).encode())


def test_the_model_is_the_summarys_where_there_is_one(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    summary = tmp_path / "run_aiperf.json"
    for names, model in ((["a"], "a"), (["a", "b"], None)):
        summary.write_text(json.dumps({"input_config": {"models": {"items": [{"name": name} for name in names]}}}))
        assert read(lines(aiperf_record(REQUESTED)), path)[0][0].resolved.model == model


def test_records_and_raw_records_of_one_request_have_one_id() -> None:
    (record,) = read(lines(aiperf_record(REQUESTED)))[0]
    (raw,) = read(lines(aiperf_raw_line(REQUESTED)))[0]
    assert record.resolved.key == raw.resolved.key


def test_of_a_folder_the_raw_records_are_read_and_the_rest_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "profile_export.jsonl").write_bytes(lines(aiperf_record(REQUESTED)))
    (tmp_path / "profile_export_raw.jsonl").write_bytes(lines(aiperf_raw_line(REQUESTED)))
    (tmp_path / "profile_export_aiperf.json").write_text(json.dumps(dict.fromkeys(SUMMARY, "x")))
    skipped = Skipped()
    found = [one for path in input_files([tmp_path], skipped) for one in read_file(path, skipped)]
    assert [one.tokens for one in found if isinstance(one, Assembled)] == [4]
    assert skipped.counts == {"repeated_file": 1, "unknown_file": 1}
    assert skipped.broken == 0
    # By their names, both: the requests have the same ids, so that the audit sees that they are the same.
    found = list(read_inputs([tmp_path / "profile_export.jsonl", tmp_path / "profile_export_raw.jsonl"]))
    assert len(found) == 2
