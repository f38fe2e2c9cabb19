"""Recordings of the field that were read wrong: each file of `fixtures/cases`, and others of its kind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.formats.bench_files import (
    NS,
    Chunk,
    Requested,
    aiperf_metadata,
    aiperf_record,
    guidellm_entry,
    inference_perf_entry,
    sglang_run,
    vllm_run,
)
from support.formats.bench_read import judged, read

from otel_llm.audit import load
from otel_llm.audit.coverage import statement
from otel_llm.formats.records import InputError

CASES = Path(__file__).parent / "fixtures" / "cases"
MS = 1_000_000
TWO = [Requested(NS, (Chunk(200 * MS), Chunk(260 * MS))), Requested(2 * NS, (Chunk(150 * MS), Chunk(190 * MS)))]


def dumped(run: Any) -> bytes:
    return json.dumps(run).encode()


def test_a_rate_without_a_limit_costs_nothing() -> None:
    found = load(CASES / "02-sglang-request-rate-infinity.jsonl", strict=True)
    assert (found.summary()["requests"], found.summary()["tokens"], found.summary()["skipped"]) == (1, 3, 0)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(("name", "why"), [("ttfts", "ttfts is out of range"), ("itls", "itls has a gap that is none")])
def test_a_number_that_is_not_finite_costs_the_request_that_uses_it(value: float, name: str, why: str) -> None:
    run = sglang_run(TWO, mean_ttft_ms=value)
    run[name][0] = [value] if name == "itls" else value
    streams, skipped = read(dumped(run))
    assert (len(judged(streams)), skipped.counts) == (1, {"bad_record": 1})
    assert why in skipped.notes[0]


def test_both_names_of_sglangs_native_backend_are_read_alike() -> None:
    rows = [judged(read((CASES / f"03-sglang{name}-chunks-of-4.jsonl").read_bytes())[0]) for name in ("", "-native")]
    for row in (rows[0][0], rows[1][0]):
        del row["trace_id"], row["span_id"]
        assert (row["tokens"], row["token_basis"], row["e2e_s"]) == (21, "exact", pytest.approx(4.6500024))
    assert rows[0] == rows[1]


BY_CHUNK = ("sglang-oai", "sglang-oai-chat", "vllm", "vllm-chat", "lmdeploy", "lmdeploy-chat", "trt", "truss")
"""The other backends of SGLang 0.5.23's `ASYNC_REQUEST_FUNCS` that stream tokens."""


@pytest.mark.parametrize("backend", BY_CHUNK)
def test_equal_gaps_of_other_backends_are_chunks(backend: str) -> None:
    run = sglang_run(TWO[:1], backend, itls=[[0.1, 0.1, 0.1]], output_lens=[8])
    (one,) = read(dumped(run))[0]
    assert (one.tokens, one.resolved.token_basis) == (4, "chunk")
    assert one.resolved.output_tokens == (None if backend in ("trt", "truss") else 8)


REPLIES = [Requested(NS * k, tuple(Chunk(MS * (100 + 20 * i)) for i in range(8))) for k in range(5)]


@pytest.mark.parametrize(
    ("requested", "found", "used"),
    [
        (10, 40, False),  # the length asked for; each chunk was a token
        (10, 42, False),
        (8, 40, True),
        (10, 50, True),  # several tokens a chunk
        (10, 46, True),
        (10, 0, True),
        (10, None, True),
    ],
)
@pytest.mark.parametrize("backend", ["sglang-oai", "sglang-oai-chat", "vllm", "lmdeploy-chat"])
def test_a_length_asked_for_is_no_count(backend: str, requested: int, found: int | None, *, used: bool) -> None:
    run = sglang_run(REPLIES, backend, output_lens=[requested] * 5, total_output_tokens_retokenized=found)
    streams, _ = read(dumped(run))
    assert {one.resolved.output_tokens for one in streams} == {requested if used else None}
    assert {row["tokens"] for row in judged(streams)} == {requested if used else 8}


def test_a_failed_request_says_nothing_of_what_lengths_are() -> None:
    run = sglang_run(REPLIES, "sglang-oai", output_lens=[10] * 4 + [0], total_output_tokens_retokenized=32)
    run["errors"][4] = "refused"
    assert {row["tokens"] for row in judged(read(dumped(run))[0])[:4]} == {8}


def only_figures(path: Path) -> dict[str, Any]:
    ((place,),) = ([*places.values()] for places in load(path).summary()["classes"].values())
    figures: dict[str, Any] = place
    return figures


def test_a_sample_has_the_totals_of_the_file_and_no_rates() -> None:
    found = load(CASES / "04-guidellm-sampled.json", strict=True)
    summary = found.summary()
    figures = summary["classes"]["chat"]["client"]
    assert (summary["requests"], summary["span_s"], len(found.rows)) == (99, None, 10)
    assert (figures["requests"], figures["aborted_share"]) == (99, pytest.approx(5 / 99))
    told = {name for name, value in figures.items() if value is not None and name.endswith("_s")}
    assert told == {f"{name}_{one}_s" for name in ("ttft", "e2e") for one in ("mean", "p50", "p90", "p99")}
    reported = statement(found.judged_table, found.skipped.counts, found.counts)
    assert "the requests are a sample: 89 more" in reported
    assert "nothing was skipped" not in reported


def test_with_several_classes_a_sample_gives_no_share_of_failures(tmp_path: Path) -> None:
    report = json.loads((CASES / "04-guidellm-sampled.json").read_text())
    (benchmark,) = report["benchmarks"]
    benchmark["requests"]["successful"][0]["request_args"] = '{"body": {"model": "other"}}'
    path, slo = tmp_path / "report.json", tmp_path / "slo.yaml"
    path.write_text(json.dumps(report))
    slo.write_text(TWO_CLASSES)
    summary = load(path, slo=slo).summary()
    assert summary["requests"] == 99
    each = [places["client"] for places in summary["classes"].values()]
    assert [(one["requests"], one["aborted_share"]) for one in each] == [(1, None), (9, None)]


TWO_CLASSES = """
version: 1
default: chat
classes:
  others: {match: {gen_ai.request.model: other}, reading_speed: 4}
  chat: {reading_speed: 4}
"""


def test_a_turn_is_due_its_delay_after_the_turn_before() -> None:
    path = CASES / "05-guidellm-think-time.json"
    (benchmark,) = json.loads(path.read_text())["benchmarks"]
    commits = {(one.resolved.commit_ns or 0) / NS for one in read(path.read_bytes())[0]}
    for entry in benchmark["requests"]["successful"]:
        timings = entry["info"]["timings"]
        due = timings["targeted_start"]
        if timings["predecessor_completed"] is not None:
            due = max(due, timings["predecessor_completed"] + 2)
        assert min(abs(commit - due) for commit in commits) < 1e-6
    ttfts = sorted(load(path).requests["ttft_s"].tolist())
    assert ttfts[-1] == pytest.approx(0.251, abs=1e-3)  # the first of all waited for the client to connect
    assert ttfts[-3] < 0.15


def test_the_delay_is_that_of_the_last_parent_to_end() -> None:
    start_s = 1_700_000_000.0

    def turn(node: str, sent: float, delay: float | None, *parents: str, before: float | None = None) -> dict[str, Any]:
        entry = guidellm_entry(Requested(0, (Chunk(NS // 4), Chunk(NS // 2))))
        entry["request_id"] = node
        entry["info"] |= {"conversation_id": "c", "node_id": node, "parent_node_ids": list(parents)}
        entry["info"]["settings"] = {"requeue_delay": delay}
        times = ("first_token_iteration", "first_output_token_iteration", "last_token_iteration", "request_end")
        entry["info"]["timings"] |= {
            "targeted_start": start_s,
            "request_start": start_s + sent,
            "predecessor_completed": None if before is None else start_s + before,
            **{name: start_s + sent + after for name, after in zip(times, (0.25, 0.25, 0.5, 0.5), strict=True)},
        }
        return entry

    turns = [
        turn("first", 0.0, 9.0),
        turn("later", 0.5, 3.0),
        turn("both", 4.5, 7.0, "first", "later", before=1.0),
        turn("unseen", 4.5, 2.0, "lost", before=1.0),
        turn("none", 4.5, None, before=1.0),
    ]
    report = {"metadata": {"guidellm_version": "0.8.1"}, "benchmarks": [{"requests": {"successful": turns}}]}
    streams, skipped = read(dumped(report))
    commits = [(one.resolved.commit_ns or 0) / NS - start_s for one in streams]
    assert commits == pytest.approx([0, 0, 4.0, 3.0, 1.0], abs=1e-6)
    assert not skipped.counts


def test_without_names_the_delay_is_that_of_the_turn_that_ended_then(tmp_path: Path) -> None:
    report = json.loads((CASES / "05-guidellm-think-time.json").read_text())
    (benchmark,) = report["benchmarks"]
    entries = benchmark["requests"]["successful"]
    for number, entry in enumerate(entries):
        # The delays after the turns before were 2 s; those of the turns themselves are others.
        entry["info"]["settings"]["requeue_delay"] = 2.0 if number < 8 else 5.0
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report))
    same = load(CASES / "05-guidellm-think-time.json")
    assert load(path).requests["ttft_s"].tolist() == same.requests["ttft_s"].tolist()
    for entry in entries[:8]:
        entry["info"]["settings"]["requeue_delay"] = 0.5
    path.write_text(json.dumps(report))
    assert load(path).requests["ttft_s"].max() == pytest.approx(1.62, abs=0.02)


@pytest.mark.parametrize("lists", [{}, {"successful": None}, {"successful": [], "errored": [], "incomplete": []}])
def test_a_report_without_a_request_is_refused_whatever_its_totals(lists: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="none of its 0 requests"):
        read(dumped({"metadata": {"guidellm_version": "0.8.1"}, "benchmarks": [{"requests": lists}]}))


def test_guidellms_warm_up_is_left_out_and_said() -> None:
    found = load(CASES / "06-guidellm-warmup.json", strict=True)
    assert (found.summary()["requests"], found.skipped.counts) == (56, {"warmup": 4})
    reported = statement(found.judged_table, found.skipped.counts, found.counts)
    assert reported.endswith("; 4 requests left out as the benchmark leaves them out.")
    assert "anomaly.not_in_sample" not in found.counts


@pytest.mark.parametrize("first", [True, False])
def test_guidellms_cool_down_is_left_out_wherever_the_measured_time_stands(first: bool) -> None:
    report = json.loads((CASES / "06-guidellm-warmup.json").read_text())
    (benchmark,) = report["benchmarks"]
    metrics = benchmark.pop("scheduler_metrics")
    metrics["measure_end_time"] = metrics["request_start_time"] + 9
    benchmark["metrics"]["request_totals"] = {"successful": 55, "errored": 0, "incomplete": 0, "total": 55}
    report["benchmarks"] = [
        {"scheduler_metrics": metrics, **benchmark} if first else {**benchmark, "scheduler_metrics": metrics}
    ]
    streams, skipped = read(dumped(report))
    assert (len(streams), skipped.counts) == (55, {"warmup": 4, "cooldown": 1})
    assert not skipped.unkept


def test_a_report_that_keeps_no_request_names_the_setting() -> None:
    path = CASES / "08-guidellm-no-requests.json"
    with pytest.raises(InputError, match=r"08-guidellm-no-requests\.json: .* none of its 2 requests.*`sample_size`"):
        load(path)


def test_replies_of_no_token_have_none_and_are_not_met() -> None:
    found = load(CASES / "07-vllm-chat-zero-output.json")
    assert {(row["tokens"], row["met"], row["ttft_s"], row["outcome"]) for row in found.rows} == {
        (0, None, None, "completed")
    }
    figures = only_figures(CASES / "07-vllm-chat-zero-output.json")
    assert (figures["tokens"], figures["attainment"], figures["goodput_req_s"]) == (0, None, None)
    assert found.requests["e2e_s"].min() > 0.1


@pytest.mark.parametrize("gaps", [[0.02], [], None])
def test_only_a_completed_reply_that_states_no_token_has_none(gaps: list[float] | None) -> None:
    run = vllm_run(TWO, output_lens=[0, 0], errors=["", "Traceback ..."], itls=[gaps, [0.02]], failed=1)
    rows = judged(read(dumped(run))[0])
    assert [(row["outcome"], row["tokens"], row["met"]) for row in rows] == [
        ("completed", 0, None),
        ("error", 2, False),
    ]


def test_a_file_of_vllm_without_starts_is_read_as_sglangs() -> None:
    run = vllm_run(TWO, queue_times=[0.5, 0.0])
    del run["start_times"]
    streams, skipped = read(dumped(run))
    assert [one.resolved.commit_ns for one in streams] == [0, 0]
    assert [list(one.times_ns) for one in streams] == [[700 * MS, 760 * MS], [150 * MS, 190 * MS]]
    assert [one.resolved.end_ns for one in streams] == [760 * MS, 190 * MS]
    assert skipped.anomalies == {"anomaly.no_start_times": 2}
    assert len({one.resolved.key for one in streams}) == 2


@pytest.mark.parametrize("indent", [None, 4])
@pytest.mark.parametrize("make", [vllm_run, sglang_run])
def test_an_array_of_runs_is_read_as_its_runs(make: Any, indent: int | None) -> None:
    runs = [make(TWO, duration=1.0), make(TWO[:1], duration=2.0)]
    apart = [one for run in runs for one in read(dumped(run))[0]]
    together, skipped = read(json.dumps(runs, indent=indent).encode())
    assert [one.resolved.key for one in together] == [one.resolved.key for one in apart]
    assert judged(together) == judged(apart)
    assert not skipped.counts


@pytest.mark.parametrize(("make", "flag"), [(vllm_run, "--save-detailed"), (sglang_run, "--output-details")])
def test_an_array_of_runs_without_details_names_the_flag(make: Any, flag: str) -> None:
    run = make(TWO)
    for name in ("ttfts", "itls", "input_lens", "output_lens", "errors", "generated_texts"):
        del run[name]
    with pytest.raises(InputError, match=rf"^result\.json: no .*{flag}"):
        read(dumped([run, run]))


def test_what_aiperf_does_not_count_is_left_out_and_said() -> None:
    found = load(CASES / "11-aiperf-raw-context-overflow.jsonl", strict=True)
    figures = only_figures(CASES / "11-aiperf-raw-context-overflow.jsonl")
    assert (figures["requests"], figures["aborted_share"], figures["attainment"]) == (5, 0, 1)
    assert found.skipped.counts == {"context_overflow": 1}


def test_aiperfs_records_are_read_as_jq_writes_them() -> None:
    path = CASES / "12-aiperf-jq-indented.json"
    found = load(path, strict=True)
    lines = load(CASES.parent / "aiperf" / "profile_export.jsonl")
    keys = ("trace_id", "outcome", "tokens", "ttft_s", "e2e_s", "met", "start_unix_nano")
    assert [[row[key] for key in keys] for row in found.rows] == [[row[key] for key in keys] for row in lines.rows]
    assert len(found.rows) == 6


LAYOUTS: dict[str, Callable[[list[Any]], bytes]] = {
    "lines": lambda records: b"".join(dumped(one) + b"\n" for one in records),
    "indented": lambda records: b"\n".join(json.dumps(one, indent=2).encode() for one in records),
    "indented by tabs": lambda records: b"".join(json.dumps(one, indent="\t").encode() + b"\n" for one in records),
    "array": dumped,
    "indented array": lambda records: b"\xef\xbb\xbf\n" + json.dumps(records, indent=1).encode(),
    "array of lines": lambda records: b"[\n" + b",\n".join(map(dumped, records)) + b"\n]\n",
    "arrays": lambda records: b"\n".join(dumped([one]) for one in records),
}


@pytest.mark.parametrize("chunks", [1, 7, 400])
@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_records_are_read_however_they_are_laid_out(layout: str, chunks: int) -> None:
    warm = {"metadata": aiperf_metadata(TWO[0], 9, benchmark_phase="warmup"), "metrics": {}}
    records = [aiperf_record(TWO[0], 0), warm, {"metrics": {}}, aiperf_record(TWO[1], 1)]
    streams, skipped = read(LAYOUTS[layout](records), cuts=chunks)
    assert [one.tokens for one in streams] == [2, 2]
    assert skipped.counts == {"warmup": 1, "bad_record": 1}


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_inference_perfs_requests_are_read_however_they_are_laid_out(layout: str) -> None:
    entries = [inference_perf_entry(TWO[0]), 7, inference_perf_entry(TWO[1])]
    streams, skipped = read(LAYOUTS[layout](entries))
    assert [one.tokens for one in streams] == [2, 2]
    assert skipped.counts == {"bad_record": 1}
    assert "request 1 at " in skipped.notes[0]


def test_a_broken_record_among_indented_ones_costs_itself() -> None:
    good = json.dumps(aiperf_record(TWO[0]), indent=2).encode()
    streams, skipped = read(b"\n".join([good, good.replace(b'"metrics": {', b'"metrics": {{'), good]))
    assert len(streams) == 2
    assert skipped.counts["bad_record"] >= 1
    streams, skipped = read(good + good[:-40])
    assert (len(streams), skipped.counts) == (1, {"torn_tail": 1})


SUMMARIES = {
    "inference-perf": ((CASES / "09-inference-perf-summary.json").read_bytes(), "per_request: true"),
    "aiperf": (dumped({"schema_version": "1.4", "aiperf_version": "0.13.0", "benchmark_id": "b"}), "--export-level"),
    "aiperf sweep": (dumped({"aggregation_type": "sweep", "num_profile_runs": 3, "metadata": {}}), "--export-level"),
    "genai-perf": (dumped({"request_latency": {}, "input_config": {}}), "--streaming"),
    "vllm throughput": (dumped({"elapsed_time": 1, "num_requests": 2, "requests_per_second": 2}), "--save-detailed"),
    "vllm latency": (dumped({"avg_latency": 1, "latencies": [1], "percentiles": {"99": 1}}), "--save-detailed"),
    "vllm dashboard": (dumped([{"benchmark": {"name": "x"}, "metric": {"benchmark_values": []}}]), "--save-detailed"),
    "vllm sweep": (b",date,model_id,request_rate,mean_ttft_ms\n0,2026,m,1.0,50\n", "--bench-cmd"),
    "sglang one batch": (dumped({"run_name": "x", "batch_size": 1, "input_len": 8}), "--output-details"),
    "guidellm": (b"Run Info,Run Info,Benchmark,Benchmark\nid,x,y,z\n", "kind=json"),
    "table": (b"Metric,avg,min,max,p99,p50\nTime to First Token (ms),1,1,1,1,1\n", "--export-level"),
}


@pytest.mark.parametrize("name", sorted(SUMMARIES))
def test_a_summary_is_named_with_the_setting_that_keeps_the_requests(tmp_path: Path, name: str) -> None:
    data, setting = SUMMARIES[name]
    path = tmp_path / "summary"
    path.write_bytes(data)
    with pytest.raises(InputError, match=f"^{path}: .* no request's times; .*{setting}"):
        load(path)
    (tmp_path / "profile_export.jsonl").write_bytes(dumped(aiperf_record(TWO[0])))
    found = load(tmp_path, strict=True)  # beside its requests it is passed over
    assert (len(found.rows), found.skipped.counts) == (1, {"unknown_file": 1})
