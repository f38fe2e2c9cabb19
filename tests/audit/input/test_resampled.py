"""Batches of streams whose replies state more tokens than were recorded."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from otel_llm.audit.input.resampled import resampled
from otel_llm.audit.input.stream_batch import from_batch, to_batch
from otel_llm.audit.kernel.judge_batch import judge_batch
from otel_llm.formats.assemble.resolved import Assembled, Resolved
from otel_llm.rules.files.slo_file import load_slo

STREAM = Resolved(
    trace_id=bytes(16),
    span_id=bytes(8),
    choice=0,
    declared_class=None,
    attributes={},
    model=None,
    instance=None,
    measured_at="client",
    outcome="completed",
    token_basis="chunk",
    commit_ns=0,
    end_ns=10**9,
    coverage=1.0,
    complete=True,
    known_tokens=0,
    known_until_ns=10**9,
)


def stream(chunks: int, stated: int | None) -> Assembled:
    return Assembled(replace(STREAM, output_tokens=stated), [place * 10**6 for place in range(chunks)], None)


@given(
    st.lists(st.tuples(st.integers(0, 5), st.none() | st.integers(0, 1200) | st.just(2**63 - 1)), max_size=20),
    st.integers(1, 3000),
)
def test_the_slices_are_the_batch(replies: list[tuple[int, int | None]], most_tokens: int) -> None:
    batch = to_batch([stream(*reply) for reply in replies])
    slices = list(resampled(batch, most_tokens))
    found = [one for part in slices for one in from_batch(part.streams)]
    assert found == [one for part in resampled(batch) for one in from_batch(part.streams)]
    assert [count for part in slices for count in part.recorded.tolist()] == [chunks for chunks, _ in replies]
    assert all(len(part.streams) == 1 or _tokens(part.streams) <= most_tokens + 5 * 200 for part in slices)


def _tokens(streams: pa.RecordBatch) -> int:
    return sum(len(one.times_ns) for one in from_batch(streams) if one.resolved.token_basis == "estimated")


def test_a_batch_of_few_chunks_that_state_many_tokens_is_judged_in_parts() -> None:
    batch = to_batch([stream(100, 20_000)] * 60)
    assert [len(part.streams) for part in resampled(batch)] == [49, 11]
    rows = judge_batch(batch, load_slo(None)).to_pylist()
    assert [(row["tokens"], row["tokens_recorded"]) for row in rows] == [(20_000, 100)] * 60
