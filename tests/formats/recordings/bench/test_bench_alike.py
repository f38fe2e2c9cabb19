"""The same requests in every benchmark tool's format give the same row, but for what a format cannot hold.

A new format in `WRITERS` (`support/formats/bench_files.py`) is tested here too. If it cannot hold something, add it
to a constant below (`ONE_AXIS`, `NO_MODEL` ...), and to `COUNTED` if its file states the tokens of a chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.formats.bench_files import NS, UPTIME_NS, WALL_NS, WRITERS, Chunk, Requested, gaps_ns
from support.formats.bench_read import judged, read

from otel_llm.formats.assemble.resolved import Assembled, Resolved

IDS = {"trace_id", "span_id"}
OPERATION = {"slo_class"}  # of those that do not say which API it was, the default class's
SHIFT_NS = {"vllm": WALL_NS - UPTIME_NS, "inference-perf": WALL_NS - UPTIME_NS}
"""What a format's clock is behind the wall clock."""
ONE_AXIS = {"sglang", "sglang-openai", "etalon"}
"""Formats without start times: each request at 0."""
BASIS = {"etalon": "estimated", "sglang": "exact", "aiperf-raw": "exact", "genai-perf": "exact"}
"""How tokens were counted, by the client's own tokenizer or by the server in each chunk; elsewhere by chunks."""
NO_MODEL = {"aiperf-records", "etalon"}
"""Formats whose model stands in a file beside them."""
COUNTED = {"sglang", "aiperf-raw", "genai-perf", "inference-perf", "etalon"}
"""Formats that say how many tokens a chunk had."""


def truth(requested: Requested, *, by_chunk: bool = False) -> Assembled:
    """Return the stream of a request without any file between."""
    sent_ns = WALL_NS + requested.sent_ns
    times_ns = [sent_ns + c.after_ns for c in requested.chunks for _ in range(1 if by_chunk else c.tokens)]
    resolved = Resolved(
        trace_id=bytes(16),
        span_id=bytes(8),
        choice=0,
        declared_class=None,
        attributes={"gen_ai.operation.name": "chat"},
        model=requested.model,
        instance=None,
        measured_at="client",
        outcome="completed",
        token_basis="chunk" if by_chunk else "exact",
        output_tokens=requested.tokens,
        commit_ns=sent_ns - requested.waited_ns,
        end_ns=sent_ns + requested.end_ns,
        coverage=1.0,
        complete=True,
        known_tokens=len(times_ns),
        known_until_ns=sent_ns + requested.end_ns,
        input_tokens=requested.input_tokens,
        exact_resume=False,
        offset_ns=None,
    )
    return Assembled(resolved, times_ns, None)


def on_the_wall(rows: list[dict[str, Any]], file_format: str, expected: Sequence[dict[str, Any]]) -> None:
    """Put the times of rows where the wall clock would have had them, as far as the format lets one."""
    for row, wanted in zip(rows, expected, strict=True):
        shift_ns = wanted["start_unix_nano"] if file_format in ONE_AXIS else SHIFT_NS.get(file_format, 0)
        row["start_unix_nano"] += shift_ns


def without(row: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in names}


@st.composite
def requests(draw: st.DrawFn, most_tokens: int = 1) -> list[Requested]:
    found = []
    sent_ns = 0
    for _ in range(draw(st.integers(1, 4))):
        sent_ns += draw(st.integers(1, 5 * NS))
        after_ns, chunks = 0, []
        for _ in range(draw(st.integers(1, 12))):
            after_ns += draw(st.integers(1, 2 * NS))
            chunks.append(Chunk(after_ns, draw(st.integers(1, most_tokens))))
        found.append(Requested(sent_ns, tuple(chunks), input_tokens=draw(st.integers(1, 5000))))
    return found


FULL = sorted(WRITERS.keys() - {"guidellm"})


def told_apart(requested: list[Requested]) -> bool:
    """Say whether SGLang's format can hold it: two neighbours with one share of their gaps would be a single chunk."""
    shares = [[gap / NS / c.tokens for gap, c in zip(gaps_ns(one), one.chunks[1:], strict=True)] for one in requested]
    return not any(a == b for each in shares for a, b in pairwise(each))


@pytest.mark.parametrize("file_format", FULL)
@given(requested=requests())
@settings(max_examples=examples(12))
def test_a_token_a_chunk_gives_the_same_row_in_every_format(file_format: str, requested: list[Requested]) -> None:
    assume(file_format != "sglang" or told_apart(requested))  # real clocks never give that
    streams, skipped = read(WRITERS[file_format](requested))
    if file_format == "aiperf-raw":
        streams.reverse()
    expected = judged([truth(one) for one in requested])
    rows = judged(streams)
    on_the_wall(rows, file_format, expected)
    differing = IDS | OPERATION | {"token_basis"} | ({"model"} if file_format in NO_MODEL else set())
    assert [without(row, differing) for row in rows] == [without(row, differing) for row in expected]
    assert not skipped.counts
    assert {row["token_basis"] for row in rows} == {BASIS.get(file_format, "chunk")}


@pytest.mark.parametrize("file_format", FULL)
@given(requested=requests(most_tokens=4))
@settings(max_examples=examples(12))
def test_chunks_of_several_tokens_give_the_row_of_their_counts_or_of_the_total(
    file_format: str, requested: list[Requested]
) -> None:
    assume(file_format != "sglang" or told_apart(requested))
    streams, _ = read(WRITERS[file_format](requested))
    if file_format == "aiperf-raw":
        streams.reverse()
    by_chunk = file_format not in COUNTED
    expected = judged([truth(one, by_chunk=by_chunk) for one in requested])
    rows = judged(streams)
    on_the_wall(rows, file_format, expected)
    differing = IDS | OPERATION | {"token_basis"} | ({"model"} if file_format in NO_MODEL else set())
    assert [without(row, differing) for row in rows] == [without(row, differing) for row in expected]
    for row, one in zip(rows, requested, strict=True):
        several = any(chunk.tokens > 1 for chunk in one.chunks)
        assert row["token_basis"] == BASIS.get(file_format, "estimated" if several else "chunk")


@pytest.mark.parametrize("file_format", ["vllm", "aiperf-records", "aiperf-raw"])
def test_the_commit_is_when_the_client_decided_to_send(file_format: str) -> None:
    requested = Requested(NS, (Chunk(200_000_000), Chunk(260_000_000)), waited_ns=1_500_000_001)
    (row,) = judged(read(WRITERS[file_format]([requested]))[0])
    assert row["ttft_s"] == 1.700000001
    assert row["start_unix_nano"] + SHIFT_NS.get(file_format, 0) == WALL_NS + NS - 1_500_000_001
    assert row["e2e_s"] == 1.760000001


@given(requested=requests(most_tokens=3))
@settings(max_examples=examples(12))
def test_guidellm_has_the_first_token_and_the_end(requested: list[Requested]) -> None:
    streams, skipped = read(WRITERS["guidellm"](requested))
    expected = judged([truth(one) for one in requested])
    known = {"ttft_s", "e2e_s"}
    for row, wanted in zip(judged(streams), expected, strict=True):
        # A float of seconds since 1970 holds a quarter of a microsecond.
        for name in known:
            assert row[name] == pytest.approx(wanted[name], abs=2e-6)
        assert abs(row["start_unix_nano"] - wanted["start_unix_nano"]) < 1000
        nulls = {name for name, value in row.items() if value is None}
        assert {"tokens", "idle_s", "fluidity_index", "met", "benefit", "tbt_max_s", "token_basis"} <= nulls
        assert (row["model"], row["outcome"]) == ("m", "completed")
    assert skipped.anomalies == {"anomaly.token_times_not_kept": len(requested)}


@pytest.mark.parametrize("file_format", sorted(WRITERS))
@pytest.mark.parametrize("chunks", [1, 3, 50])
def test_any_cut_of_the_bytes_gives_the_same(file_format: str, chunks: int) -> None:
    data = WRITERS[file_format]([Requested(5, (Chunk(7, 2), Chunk(11))), Requested(9, (Chunk(8),))])
    assert read(data, cuts=chunks) == read(data)


@pytest.mark.parametrize("file_format", sorted(WRITERS))
def test_ids_are_the_requests_own(file_format: str) -> None:
    # Two that ask for the same at the same time, one of them read twice.
    requested = [Requested(5, (Chunk(7), Chunk(11))), Requested(5, (Chunk(7), Chunk(11)))]
    once = [one.resolved.key for one in read(WRITERS[file_format](requested))[0]]
    assert once == [one.resolved.key for one in read(WRITERS[file_format](requested), "another.json")[0]]
    assert len(set(once)) == len(once)
