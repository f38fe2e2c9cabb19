"""Known read times through the client's code: the figures are those of the arithmetic on these times."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.bench.replies import MS, event, exchanged, framed, reply
from support.examples import examples
from support.sse_server import chunk, usage

from otel_llm.audit.load import load
from otel_llm.bench.client.target import Target
from otel_llm.bench.recording.run_journal import RequestRecords, RunJournal
from otel_llm.rules.files.slo_file import load_slo
from otel_llm.shared.clock import FakeClock
from otel_llm.slo.request import judge

TARGET = Target.read("http://127.0.0.1:8000", model="m")


def test_tokens_have_the_times_of_their_reads() -> None:
    request = exchanged(reply([150, 20, 20, 500]))
    assert [time // MS for time in request.times_ns] == [150, 170, 190, 690]
    assert (request.outcome, request.error, request.end_ns, request.token_basis) == (
        "completed",
        None,
        691 * MS,
        "chunk",
    )


@settings(max_examples=examples(60))
@given(cuts=st.lists(st.integers(1, 60), min_size=1, max_size=200))
def test_any_cutting_of_the_bytes_gives_the_same_tokens(cuts: list[int]) -> None:
    whole = b"".join(data for _, data in reply([1, 1, 1]))
    reads, at = [], 0
    for index, size in enumerate([*cuts, len(whole)]):
        if at < len(whole):
            reads.append((index, whole[at : at + size]))
            at += size
    request = exchanged(reads)
    assert request.outcome == "completed"
    assert len(request.times_ns) == 3
    for index, time in enumerate(request.times_ns):  # the read that ends its line, or the blank one behind it
        end = whole.index(f"w{index} ".encode())
        read = next(at for at, _ in reads if sum(len(data) for when, data in reads if when <= at) > end)
        assert time >= read


def test_token_ids_and_running_usage_count_exactly() -> None:
    assert exchanged(reply([1, 1], token_ids=[5, 6, 7])).token_basis == "exact"
    assert len(exchanged(reply([1, 1], token_ids=[5, 6, 7])).times_ns) == 6


def test_final_usage_is_noted_for_the_verdict() -> None:
    reads = reply([100, 50, 50])
    at_ns, end = reads[-2]
    reads[-2] = (at_ns, framed(event(usage(7))) + end)
    request = exchanged(reads)
    assert (request.token_basis, request.stated_tokens, request.stated_reasoning) == ("chunk", 7, None)
    assert [time // MS for time in request.times_ns] == [100, 150, 200]


def test_reasoning_that_is_not_streamed_is_noted() -> None:
    stated = usage(7)
    stated["usage"]["completion_tokens_details"] = {"reasoning_tokens": 4}
    reads = reply([100, 50, 50])
    at_ns, end = reads[-2]
    reads[-2] = (at_ns, framed(event(stated)) + end)
    request = exchanged(reads)
    assert (len(request.times_ns), request.stated_tokens, request.stated_reasoning) == (3, 7, 4)


def test_reasoning_counts_by_kind() -> None:
    reads = reply([100])
    thought = framed(event(chunk({"reasoning_content": "hm"})))
    request = exchanged([reads[0], (50 * MS, thought), *reads[1:]])
    assert list(request.kinds) == [1, 0]
    assert [time // MS for time in request.times_ns] == [50, 100]


@pytest.mark.parametrize(
    ("stated", "tokens", "basis"), [(10**15, 2, "chunk"), (0, 2, "chunk"), (2, 2, "chunk"), (7, 7, "estimated")]
)
def test_the_audit_of_the_recording_judges_a_count_that_can_be(
    stated: int, tokens: int, basis: str, tmp_path: Path
) -> None:
    reads = reply([100, 50])
    at_ns, end = reads[-2]
    reads[-2] = (at_ns, framed(event(usage(stated))) + end)
    with RunJournal(tmp_path / "run", RequestRecords(TARGET, "chat", FakeClock())) as journal:
        journal.write(exchanged(reads))
    (row,) = load(tmp_path / "run").rows
    assert (row["tokens"], row["tokens_recorded"], row["token_basis"]) == (tokens, 2, basis)


def test_the_recording_is_judged_as_the_known_times(tmp_path: Path) -> None:
    """The audit of the journal and the arithmetic on the read times agree on every figure."""
    gaps = [[150, 20, 20, 500], [3000, 1, 1], [40] * 250, [10, 4000]]
    requests = [exchanged(reply(one), number) for number, one in enumerate(gaps)]
    with RunJournal(tmp_path / "run", RequestRecords(TARGET, "chat", FakeClock())) as journal:
        for request in requests:
            journal.write(request)
    classes = load_slo(None)
    rows = {int(str(row["trace_id"])[-12:], 16) - 1: row for row in load(tmp_path / "run", slo=classes).rows}
    assert len(rows) == len(gaps)
    for number, request in enumerate(requests):
        assert request.end_ns is not None
        wanted = judge(request.times_ns, 0, request.end_ns, "completed", classes.get("chat"))
        row = rows[number]
        assert row["ttft_s"] == wanted.ttft_ns / 1e9  # type: ignore[operator]
        assert row["idle_s"] == wanted.idle_ns / 1e9  # type: ignore[operator]
        assert row["tokens"] == wanted.tokens
        assert row["deadline_misses"] == wanted.deadline_misses
        assert row["tbt_max_s"] == wanted.tbt_max_ns / 1e9  # type: ignore[operator]
        assert row["met"] == wanted.met
        assert row["token_basis"] == "chunk"
        assert row["measured_at"] == "client"
