"""Results of inference-perf, genai-perf and GuideLLM: versions, failures, network reads that cut events."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from support.formats.bench_files import (
    NS,
    UPTIME_NS,
    WALL_NS,
    Chunk,
    Requested,
    aiperf_raw_line,
    chat_events,
    genai_perf_entry,
    guidellm_entry,
    guidellm_report,
    inference_perf_entry,
)
from support.formats.bench_read import judged, read

from otel_llm.formats.records import InputError

MS = 1_000_000
REQUESTED = Requested(NS, (Chunk(200 * MS), Chunk(260 * MS, 3)))
SENT_NS = UPTIME_NS + NS


def array(*entries: Any) -> bytes:
    return json.dumps(entries).encode()


def with_info(**info: Any) -> dict[str, Any]:
    return inference_perf_entry(REQUESTED, info={"input_tokens": 12, **info})


def test_retokenised_counts_are_estimated_and_as_many_chunks_as_tokens_are_chunks() -> None:
    (one,) = read(array(inference_perf_entry(REQUESTED)))[0]
    assert one.events.expanded()[0] == [SENT_NS + 200 * MS, *[SENT_NS + 260 * MS] * 3]
    assert (one.resolved.token_basis, one.resolved.model, one.resolved.input_tokens) == ("estimated", "m", 12)
    entry = inference_perf_entry(REQUESTED)
    entry["info"]["response_metrics"]["server_usage"]["completion_tokens"] = 2
    (one,) = read(array(entry))[0]
    assert (one.tokens, one.resolved.token_basis) == (2, "chunk")


def test_the_place_of_version_0_5() -> None:
    reported = inference_perf_entry(REQUESTED)["info"]["response_metrics"]
    (one,) = read(array(with_info(response_info=reported)))[0]
    assert one.tokens == 4


@pytest.mark.parametrize("body", [True, False])
def test_version_0_4_has_a_time_for_each_event_framing_included(body: bool) -> None:
    events = chat_events(REQUESTED, running=False)
    entry = with_info(output_token_times=[(SENT_NS + after_ns) / NS for after_ns, _ in events])
    entry["response"] = "".join(f"data: {value}\n\n" for _, value in events) if body else ""
    streams, skipped = read(array(entry))
    assert streams[0].tokens == (2 if body else len(events))
    assert streams[0].resolved.token_basis == "chunk"
    assert skipped.anomalies["anomaly.framing_counted"] == (0 if body else 1)


def test_what_failed_keeps_its_end_and_lost_its_times() -> None:
    entry = inference_perf_entry(
        REQUESTED, error={"error_type": "TimeoutError", "error_msg": ""}, end_time=(SENT_NS + 5 * NS) / NS
    )
    del entry["info"]["response_metrics"]
    streams, skipped = read(array(entry, inference_perf_entry(REQUESTED)))
    row = judged(streams)[0]
    assert (row["outcome"], row["e2e_s"], row["tokens"], row["idle_s"]) == ("error", 5.0, None, None)
    assert skipped.anomalies == {"anomaly.clock_unanchored": 2, "anomaly.token_times_not_kept": 1}


@pytest.mark.parametrize(("counted", "basis"), [(3, "exact"), (None, "estimated")])
def test_a_reply_in_one_piece_came_at_the_end(counted: int | None, basis: str) -> None:
    reported = {"output_tokens": 3, "server_usage": {"completion_tokens": counted}}
    entry = with_info(response_metrics=reported)
    entry["request"] = json.dumps({"model": "m", "prompt": "x"})
    (one,) = read(array(entry))[0]
    assert (one.events.expanded()[0], one.resolved.token_basis) == ([SENT_NS + 260 * MS] * 3, basis)


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (with_info(), "no times of tokens"),
        (inference_perf_entry(REQUESTED, start_time=None), "start_time is no number"),
        (7, "no object"),
        (with_info(output_token_times=[{}]), "output_token_times is no number"),
    ],
)
def test_a_broken_element_costs_itself(entry: Any, why: str) -> None:
    good = inference_perf_entry(REQUESTED)
    streams, skipped = read(array(good, entry, good))
    assert (len(streams), skipped.counts) == (2, {"bad_record": 1})
    assert "request 1 at byte" in skipped.notes[0]
    assert why in skipped.notes[0]


def experiments(*requests: Any) -> bytes:
    return json.dumps(
        {"experiments": [{"experiment": {"mode": "concurrency", "value": 1}, "requests": requests}]}
    ).encode()


def test_an_event_came_with_the_read_that_completed_it() -> None:
    events = [f"data: {value}\n\n" for _, value in chat_events(REQUESTED, running=False)]
    cut = len(events[1]) // 2
    entry = genai_perf_entry(REQUESTED)
    at = [WALL_NS + NS + after_ns for after_ns in (100 * MS, 200 * MS, 260 * MS)]
    texts = [events[0] + events[1][:cut], events[1][cut:] + events[2][:5], events[2][5:] + "".join(events[3:])]
    entry |= {"response_timestamps": at, "response_outputs": [{"response": text} for text in texts]}
    streams, skipped = read(experiments(entry))
    assert streams[0].events.expanded()[0] == [at[1], at[2]]
    assert (streams[0].resolved.token_basis, streams[0].resolved.end_ns) == ("chunk", at[2])
    assert skipped.anomalies == {"anomaly.failures_not_kept": 1}


def test_events_without_their_blank_lines_are_distinguished() -> None:
    entry = genai_perf_entry(REQUESTED)
    events = chat_events(REQUESTED, running=True)
    entry["response_timestamps"] = [WALL_NS + NS + after_ns + i for i, (after_ns, _) in enumerate(events)]
    entry["response_outputs"] = [{"response": f"data: {value}"} for _, value in events]
    (one,) = read(experiments(entry))[0]
    assert one.events.expanded()[0] == [WALL_NS + NS + 200 * MS + 1, *[WALL_NS + NS + 260 * MS + 2] * 3]


STATED = {"metrics": {"time_to_first_token_ms": 125.0, "queue_time_ms": 250.0, "mean_itl_ms": 3.0}}


@pytest.mark.parametrize(
    "file_format",
    [
        lambda last: experiments(genai_perf_entry(REQUESTED, last)),
        lambda last: json.dumps(aiperf_raw_line(REQUESTED, last=last)).encode(),
    ],
    ids=["genai-perf", "aiperf"],
)
def test_a_recorded_reply_of_vllm_states_its_time_in_the_queue_and_for_the_prompt(
    file_format: Callable[[dict[str, Any]], bytes],
) -> None:
    for last, found in ((STATED, (0.25, 0.125)), ({}, (None, None)), ({"metrics": [1]}, (None, None))):
        (row,) = judged(read(file_format(last))[0])
        assert (row["queue_s"], row["prefill_s"], row["tokens"]) == (*found, 4)


def test_a_whole_reply_of_genai_perf() -> None:
    body = json.dumps({"choices": [{"text": "abc"}], "usage": {"completion_tokens": 2}})
    entry = genai_perf_entry(REQUESTED) | {
        "response_timestamps": [WALL_NS + 2 * NS],
        "response_outputs": [{"response": body}],
    }
    (one,) = read(experiments(entry))[0]
    assert one.events.expanded()[0] == [WALL_NS + 2 * NS] * 2


def test_a_broken_request_of_genai_perf_costs_itself() -> None:
    good = genai_perf_entry(REQUESTED)
    streams, skipped = read(experiments(good, good | {"response_timestamps": [1]}, {"timestamp": "x"}, good))
    assert (len(streams), skipped.counts) == (2, {"bad_record": 2})


def test_other_services_of_genai_perf_are_refused() -> None:
    entry = genai_perf_entry(REQUESTED) | {"response_timestamps": [1], "response_outputs": [{"text_output": "x"}]}
    with pytest.raises(InputError, match="not an OpenAI endpoint's; run `genai-perf profile --streaming`"):
        read(experiments(entry))


def test_guidellms_lists_are_its_outcomes() -> None:
    entries = [guidellm_entry(REQUESTED, number) for number in range(4)]
    for entry, status in zip(entries, ("completed", "errored", "cancelled", None), strict=True):
        entry["info"]["status"] = status
    timings = entries[1]["info"]["timings"]
    timings |= {"first_token_iteration": None, "first_output_token_iteration": None}
    rows = judged(read(guidellm_report(entries[:1], entries[1:2], entries[2:]))[0])
    assert [row["outcome"] for row in rows] == ["completed", "error", "cancelled", "cancelled"]
    assert [row["ttft_s"] is None for row in rows] == [False, True, False, False]
    assert rows[0]["ttft_s"] == pytest.approx(0.2, abs=1e-6)


def test_guidellm_waits_from_when_a_request_was_due() -> None:
    late = Requested(NS, REQUESTED.chunks, waited_ns=2 * NS)
    (row,) = judged(read(guidellm_report([guidellm_entry(late)]))[0])
    assert (row["ttft_s"], row["e2e_s"]) == (pytest.approx(2.2, abs=1e-6), pytest.approx(2.26, abs=1e-6))


def test_a_request_that_guidellm_never_sent_costs_itself() -> None:
    never = guidellm_entry(REQUESTED)
    never["info"]["timings"] = {"targeted_start": None, "request_start": None}
    streams, skipped = read(guidellm_report([guidellm_entry(REQUESTED)], incomplete=[never]))
    assert (len(streams), skipped.counts) == (1, {"bad_record": 1})


def test_guidellms_yaml_is_refused_with_the_way_out() -> None:
    with pytest.raises(InputError, match=r"guidellm export result\.json --output kind=json"):
        read(b"metadata:\n  guidellm_version: 0.8.1\n  version: 2\n")
