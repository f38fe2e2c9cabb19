"""Results of vLLM's and SGLang's benchmarks and of Etalon: parallel arrays, with what failed and what is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.formats.bench_files import NS, Chunk, Requested, etalon_file, sglang_run, vllm_run
from support.formats.bench_read import judged, read, recognised

from otel_llm.formats.records import InputError

MS = 1_000_000
TWO = [Requested(NS, (Chunk(200 * MS), Chunk(260 * MS))), Requested(2 * NS, (Chunk(150 * MS), Chunk(190 * MS)))]


def dumped(run: dict[str, Any]) -> bytes:
    return json.dumps(run).encode()


def failed(run: dict[str, Any], index: int, error: str, ttft: float, itls: list[float]) -> dict[str, Any]:
    """Let a request fail as vLLM writes it: no latency, no count of tokens, the chunks before it are kept."""
    for name, value in {"errors": error, "ttfts": ttft, "itls": itls, "output_lens": 0}.items():
        run[name][index] = value
    if "latencies" in run:
        run["latencies"][index] = 0.0
    return run


def test_the_example_of_the_notes() -> None:
    run = vllm_run([Requested(0, (Chunk(1),)), Requested(0, (Chunk(1),))]) | {
        "start_times": [3500.10, 3500.60],
        "ttfts": [0.20, 0.0],
        "itls": [[0.03, 0.03], []],
        "output_lens": [4, 0],
        "latencies": [0.26, 0.0],
        "queue_times": [0.001, 0.0],
        "errors": ["", "Traceback ..."],
        "failed": 1,
    }
    streams, skipped = read(dumped(run))
    first, second = streams
    commit_ns = 3500_099_000_000
    assert first.resolved.commit_ns == commit_ns
    assert first.events.expanded()[0] == [commit_ns + after for after in (201 * MS, 231 * MS, 261 * MS)]
    assert first.resolved.end_ns == commit_ns + 261 * MS
    assert first.resolved.token_basis == "chunk"  # three chunks, four tokens
    assert (second.resolved.outcome, second.resolved.end_ns, second.events.expanded()[0]) == ("error", None, [])
    assert skipped.anomalies == {"anomaly.clock_unanchored": 2, "anomaly.end_unknown": 1}
    assert not skipped.counts


def test_the_times_that_the_server_states_are_those_of_its_queue_and_of_the_prompt() -> None:
    run = vllm_run(TWO, server_queue_times=[0.25, None], server_ttfts=[0.0, 0.125])
    rows = judged(read(dumped(run))[0])
    assert [(row["queue_s"], row["prefill_s"]) for row in rows] == [(0.25, 0.0), (None, 0.125)]
    rows = judged(read(dumped(vllm_run(TWO)))[0])
    assert {(row["queue_s"], row["prefill_s"]) for row in rows} == {(None, None)}


@pytest.mark.parametrize("odd", [-1.0, float("nan"), float("inf"), True, "0.1", 10**400])
def test_a_time_of_the_server_that_is_none_is_not_known(odd: object) -> None:
    run = vllm_run(TWO, server_queue_times=[odd, 0.1], server_ttfts=[odd, 0.1])
    streams, skipped = read(dumped(run))
    assert [(row["queue_s"], row["prefill_s"]) for row in judged(streams)] == [(None, None), (0.1, 0.1)]
    assert not skipped.counts


def test_what_failed_is_not_met_and_nothing_else_is_judged() -> None:
    run = failed(vllm_run(TWO, failed=1), 1, "Traceback (most recent call last): ...", 0.15, [0.01])
    streams, skipped = read(dumped(run))
    met, cut = judged(streams)
    assert (met["outcome"], met["met"]) == ("completed", True)
    assert (cut["outcome"], cut["met"], cut["coverage"], cut["e2e_s"]) == ("error", False, None, None)
    assert (cut["tokens"], cut["ttft_s"], cut["token_basis"]) == (2, 0.15, "chunk")
    assert cut["idle_s"] is cut["benefit"] is cut["fluidity_index"] is None
    assert "anomaly.failures_do_not_add_up" not in skipped.anomalies


def test_a_refusal_without_a_reason_is_recognised_by_its_missing_times() -> None:
    streams, skipped = read(dumped(failed(vllm_run(TWO, failed=1), 0, "", 0.0, [])))
    assert [one.resolved.outcome for one in streams] == ["error", "completed"]
    assert "anomaly.failures_do_not_add_up" not in skipped.anomalies


def test_failures_that_do_not_add_up_are_counted() -> None:
    _, skipped = read(dumped(vllm_run(TWO, failed=2)))
    assert skipped.anomalies["anomaly.failures_do_not_add_up"] == 2


@pytest.mark.parametrize("tokens", [1, 3])
def test_without_as_many_chunks_as_tokens_the_basis_is_the_chunk(tokens: int) -> None:
    ((first, _), _) = read(dumped(vllm_run(TWO, output_lens=[tokens, 2])))
    assert (first.resolved.token_basis, first.tokens) == ("chunk", 2)


@pytest.mark.parametrize(
    ("name", "values", "where"),
    [
        ("ttfts", ["soon", 0.15], "ttfts is no number"),
        ("itls", [[0.06, None], [0.04]], "itls has a gap that is none"),
        ("itls", [[-0.06], [0.04]], "itls has a gap that is none"),
        ("itls", [[True], [0.04]], "itls has a gap that is none"),
        ("itls", [7, [0.04]], "itls is no list"),
        ("itls", [[1e308, 1e308], [0.04]], "itls has a gap that is none, or is out of range"),
        ("start_times", [1e300, 3002.0], "start_times is out of range"),
        ("errors", [None, ""], "errors is no text"),
    ],
)
def test_a_broken_entry_costs_itself(name: str, values: list[Any], where: str) -> None:
    streams, skipped = read(dumped(vllm_run(TWO, **{name: values})))
    assert len(streams) == 1
    assert streams[0].resolved.token_basis == "chunk"
    assert skipped.counts == {"bad_record": 1}
    assert "result.json: run 1, request 0: " in skipped.notes[0]
    assert where in skipped.notes[0]


def test_runs_are_appended_one_a_line_and_a_broken_one_costs_itself() -> None:
    good, plain = vllm_run(TWO), vllm_run(TWO)
    for name in ("input_lens", "output_lens", "start_times", "ttfts", "itls", "generated_texts", "errors"):
        del plain[name]
    streams, skipped = read(b"\n".join(map(dumped, (good, plain, vllm_run(TWO, ttfts=[0.1]), good))))
    assert len(streams) == 4
    assert skipped.counts == {"bad_record": 2}
    assert "run 2" in skipped.notes[0]
    assert "--save-detailed" in skipped.notes[0]
    assert "run 3: ttfts has 1 entries for 2 requests" in skipped.notes[1]


@pytest.mark.parametrize("lacking", ["ttfts", "errors"])
def test_without_details_the_flag_is_named(lacking: str) -> None:
    run = vllm_run(TWO)
    del run[lacking]
    with pytest.raises(InputError, match=rf"^result\.json: no {lacking}.*--save-result --save-detailed"):
        read(dumped(run))


def test_a_cut_file_is_counted_with_its_place() -> None:
    data = dumped(vllm_run(TWO))
    streams, skipped = read(dumped(vllm_run(TWO)) + b"\n" + data[: len(data) - 40])
    assert len(streams) == 2
    assert skipped.counts == {"torn_tail": 1}
    assert "byte" in skipped.notes[0]


def test_other_tools_files_are_not_taken_for_these() -> None:
    assert recognised(dumped({"model_id": "m", "num_prompts": 2})) is None
    assert recognised(dumped({"num_prompt_tokens": [1], "results": []})) is None
    assert recognised(dumped({"dataset_name": "x", "rows": []})) is None


def test_the_example_of_sglangs_notes() -> None:
    run = sglang_run([Requested(0, (Chunk(1),)), Requested(0, (Chunk(1),))]) | {
        "output_lens": [5, 0],
        "ttfts": [0.2, 0.0],
        "itls": [[0.01, 0.01, 0.04, 0.04], []],
        "errors": ["", "Internal Server Error: ..."],
    }
    streams, skipped = read(dumped(run))
    # Two chunks of two tokens each: the second came 20 ms after the first, the third 80 ms after that.
    assert streams[0].events.expanded()[0] == [200 * MS, 220 * MS, 220 * MS, 300 * MS, 300 * MS]
    assert streams[0].resolved.token_basis == "exact"
    assert (streams[0].resolved.commit_ns, streams[0].resolved.model) == (0, "m")
    assert (streams[1].resolved.outcome, streams[1].resolved.end_ns) == ("error", None)
    assert skipped.anomalies == {"anomaly.no_start_times": 2, "anomaly.end_unknown": 1}


def test_the_first_chunk_has_the_tokens_that_the_gaps_do_not() -> None:
    run = sglang_run(TWO[:1], output_lens=[4])  # one gap: three tokens came first
    (one,) = read(dumped(run))[0]
    assert one.events.expanded()[0] == [200 * MS] * 3 + [260 * MS]


@pytest.mark.parametrize("tokens", [1, 0, 10**15])
def test_a_count_that_cannot_be_is_not_used(tokens: int) -> None:
    (one,) = read(dumped(sglang_run(TWO[:1], output_lens=[tokens])))[0]
    assert (one.events.expanded()[0], one.resolved.token_basis) == ([200 * MS, 260 * MS], "chunk")


def test_an_empty_reply_is_no_error_to_sglang() -> None:
    run = sglang_run(TWO[:1], output_lens=[0], ttfts=[0.0], itls=[[]], server_info=None)
    (row,) = judged(read(dumped(run))[0])
    assert (row["outcome"], row["tokens"], row["met"], row["ttft_s"], row["model"]) == (
        "completed",
        0,
        None,
        None,
        None,
    )


def test_sglang_without_details_is_refused_with_the_flag() -> None:
    run = sglang_run(TWO)
    for name in ("ttfts", "itls", "output_lens", "errors"):
        del run[name]
    with pytest.raises(InputError, match="--output-details"):
        read(dumped(run))


def test_requests_of_two_runs_are_distinguished() -> None:
    streams, _ = read(dumped(sglang_run(TWO)) + b"\n" + dumped(sglang_run(TWO, duration=4.0)))
    assert len({one.resolved.key for one in streams}) == 4


def test_etalons_model_stands_beside_and_failures_are_recognised_by_their_silence(tmp_path: Path) -> None:
    path = tmp_path / "request_level_metrics.json"
    (tmp_path / "config.json").write_text(json.dumps({"model": "beside"}))
    run = etalon_file(TWO)
    run["ttft"][1], run["tbt"][1] = 0, []
    streams, skipped = read(dumped(run), path)
    assert [one.resolved.model for one in streams] == ["beside", "beside"]
    assert [one.resolved.outcome for one in streams] == ["completed", "error"]
    assert [one.resolved.token_basis for one in streams] == ["estimated", "estimated"]
    assert skipped.anomalies == {
        "anomaly.no_start_times": 2,
        "anomaly.outcome_unknown": 1,
        "anomaly.end_unknown": 1,
    }


def test_a_large_file_of_etalons_is_recognised_by_its_first_array() -> None:
    data = dumped(etalon_file(TWO[:1] * 100_000))
    assert recognised(data) == recognised(dumped(etalon_file(TWO)))
    assert recognised(data) is not None


@pytest.mark.parametrize("beside", ["{", "[]", '{"model": 7}', "\xff"])
def test_a_broken_file_beside_says_nothing(tmp_path: Path, beside: str) -> None:
    (tmp_path / "config.json").write_text(beside, encoding="latin-1")
    (one,) = read(dumped(etalon_file(TWO[:1])), tmp_path / "request_level_metrics.json")[0]
    assert one.resolved.model is None


def test_etalons_arrays_must_fit() -> None:
    with pytest.raises(InputError, match="tbt has 1 entries for 2 requests"):
        read(dumped(etalon_file(TWO) | {"tbt": [[0.1]]}))
