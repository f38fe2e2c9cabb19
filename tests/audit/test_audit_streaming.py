"""The audit of an input in pieces: the rows, windows and counts of everything at once, whatever the pieces."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, NoReturn

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.audit.audit_oracle import one_by_one, windows_one_by_one
from support.chance import chances
from support.core.core_fleets import Fleet, fleet
from support.examples import examples
from support.otlp import T0_NS, export, request_span, stream_spans
from support.recordings import vector_classes, vector_messages, write_format

from otel_llm import audit
from otel_llm.audit.input import retained
from otel_llm.audit.input.load_inputs import Inputs
from otel_llm.audit.input.stream_batch import batches
from otel_llm.audit.kernel import workers
from otel_llm.audit.kernel.judge_batch import judge_batch
from otel_llm.audit.kernel.window_totals import PARTIALS, Windows, merge_partials, window_partials
from otel_llm.audit.load import Limits
from otel_llm.formats.assemble.assembler import Assembler
from otel_llm.formats.io.journal_format import frame
from otel_llm.formats.otlp.export_request import decode
from otel_llm.rules.files.slo_file import load_slo
from otel_llm.slo.classes import Benefit, SloClass, SloClasses
from otel_llm.slo.figures import CLASSES
from otel_llm.slo.metrics import REQUESTS

LATENESS_NS = 5_000_000_000


def journal(drawn: Fleet) -> bytes:
    return b"".join(frame(export(*one.spans).SerializeToString(), one.receipt_ns) for one in drawn.deliveries)


def at_once(drawn: Fleet) -> tuple[list[Any], list[Any], Counter[str]]:
    """Return rows, windows and counts of an audit that holds everything, stream by stream."""
    assembler = Assembler()
    for one in drawn.deliveries:
        assembler.add(decode(export(*one.spans), one.receipt_ns))
    judged = one_by_one(assembler.finish(), drawn.classes, assembler.counts)
    windows = windows_one_by_one(judged, drawn.window_ns, LATENESS_NS, assembler.counts)
    return [one.row for one in judged], windows, +assembler.counts


@settings(max_examples=examples(30))
@given(random=chances(), group=st.sampled_from([1, 3, 4096]), held_bytes=st.sampled_from([0, 4000, 10**9]))
def test_any_journal_gives_the_rows_windows_and_counts_of_all_at_once(
    tmp_path_factory: pytest.TempPathFactory, random: Random, group: int, held_bytes: int
) -> None:
    drawn = fleet(random)
    rows, windows, counts = at_once(drawn)
    path = tmp_path_factory.mktemp("fleet") / "a.otlp"
    path.write_bytes(journal(drawn))
    inputs = Inputs([path], held_bytes=held_bytes, group_records=group)
    table, charged = [], Windows()
    for batch in inputs.batches():
        judged = judge_batch(batch, drawn.classes)
        charged.add(window_partials(batch, judged, drawn.classes, drawn.window_ns, LATENESS_NS))
        table += judged.to_pylist()
    found = Counter(inputs.counts + charged.counts)
    found["unknown_class"] += sum(row["unknown_class"] for row in table)
    found["skewed_tokens"] += sum(row["skewed"] for row in table)

    assert sorted(({name: row[name] for name in REQUESTS} for row in table), key=str) == sorted(rows, key=str)
    assert charged.rows(drawn.window_ns) == windows
    assert +found == counts
    assert [row["trace_id"] for row in audit.load(path, slo=drawn.classes).rows] == [row["trace_id"] for row in rows]


SHAPES = (
    SloClass("linear", benefit=Benefit(2.5, "linear", 3.25)),
    SloClass("quadratic", pace_ns=30_000_000, benefit=Benefit(0.7, "quadratic", 0.1)),
    SloClass("exponential", pace_ns=90_000_000, benefit=Benefit(0.3, "exponential"), reads=(0, 1)),
    SloClass("slow", pace_ns=2**58, start_ns=2**40),  # so slow that sums would leave 64 bits
)


@settings(max_examples=examples(25))
@given(random=chances(), length_ns=st.sampled_from([10**8, 10**9, 10**10]), most_tokens=st.sampled_from([1, 40, 10**6]))
def test_partial_windows_add_up_to_the_ledgers(random: Random, length_ns: int, most_tokens: int) -> None:
    drawn = fleet(random)
    slo = random.choice(SHAPES)
    classes = SloClasses((slo,), slo.name)
    assembler = Assembler()
    for one in drawn.deliveries:
        assembler.add(decode(export(*one.spans), one.receipt_ns))
    streams = assembler.finish()[:3]
    counts: Counter[str] = Counter()
    wanted = windows_one_by_one(one_by_one(streams, classes), length_ns, LATENESS_NS, counts)
    parts = [
        window_partials(batch, judge_batch(batch, classes), classes, length_ns, LATENESS_NS)
        for batch in batches(streams, most_tokens)
    ]
    assert all(part.schema == PARTIALS for part in parts)
    assert merge_partials(reversed(parts), length_ns) == wanted
    total = Windows()
    for part in parts:
        total.add(part)
    assert +total.counts == +counts


def test_nothing_in_no_windows_out() -> None:
    classes = load_slo(None)
    judged = [judge_batch(batch, classes) for batch in batches([])]
    assert judged == []
    assert merge_partials([], 10) == []


def recorded(tmp_path: Path) -> Path:
    return write_format(tmp_path, "journal.otlp", vector_messages())


@pytest.mark.system
def test_several_processes_give_the_same(tmp_path: Path) -> None:
    path = recorded(tmp_path)
    classes = vector_classes()
    one = audit.load(path, slo=classes)
    inputs = list(Inputs([path]).batches())
    single = [batch.slice(row, 1) for batch in inputs for row in range(min(8, len(batch)))]
    work = workers.Work(classes, 10**10, LATENESS_NS)
    alone = list(workers.outcomes(iter(single), work, 1))
    together = list(workers.outcomes(iter(single), work, 3, small_batches=2))
    assert [found.judged for found in together] == [found.judged for found in alone]
    assert [found.partials for found in together] == [found.partials for found in alone]
    assert audit.load(path, slo=classes, jobs=2).judged_table == one.judged_table  # too small for a second process


@pytest.mark.system
def test_a_process_that_dies_is_reported(tmp_path: Path) -> None:
    single = [batch.slice(0, 1) for batch in Inputs([recorded(tmp_path)]).batches()] * 4
    with pytest.raises(audit.WorkerError, match="--jobs 1"):
        list(workers.outcomes(iter(single), Exits(vector_classes(), None, LATENESS_NS), 2, small_batches=0))


class Exits(workers.Work):
    """Ends the process that is to judge."""

    def __call__(self, streams: pa.RecordBatch) -> NoReturn:
        os._exit(1)


def test_deliveries_are_at_hand_of_the_worst_and_of_those_asked_for(tmp_path: Path) -> None:
    path = recorded(tmp_path)
    every = audit.load(path, slo=vector_classes())
    for position, row in enumerate(every.rows):
        delivery = every.delivery(position)
        assert delivery is not None
        assert (delivery.resolved.trace_id.hex(), delivery.tokens) == (row["trace_id"], row["tokens"])

    wanted = next(row["trace_id"] for row in every.rows if row["idle_s"] == 0)
    few = audit.load(path, slo=vector_classes(), keep=[str(wanted)], limits=Limits(retained_tokens=0, retained_worst=2))
    rows: list[Any] = few.rows
    at_hand = {position for position in range(len(rows)) if few.delivery(position) is not None}
    longest = sorted((-(row["idle_s"] or 0), position) for position, row in enumerate(rows))[:2]
    lowest = sorted(
        (row["fluidity_index"], position)
        for position, row in enumerate(rows)
        if row["fluidity_index"] is not None and row["fluidity_index"] < 1
    )[:4]
    requested = {position for position, row in enumerate(few.rows) if row["trace_id"] == wanted}
    assert at_hand == {position for _, position in [*longest, *lowest]} | requested
    with pytest.raises(IndexError):
        few.delivery(10**6)


def test_classes_is_the_summary_as_a_table(tmp_path: Path) -> None:
    found = audit.load(recorded(tmp_path), slo=vector_classes())
    summary = found.summary()["classes"]
    table = found.classes
    assert list(table.columns) == list(CLASSES)
    assert len(table) == sum(len(places) for places in summary.values())
    for _, row in table.iterrows():
        figures = summary[row["slo_class"]][row["measured_at"]]
        shown = {name: None if row[name] is pd.NA else row[name] for name in figures}
        assert shown == figures


def test_windows_that_were_not_charged_are_not_made_up(tmp_path: Path) -> None:
    found = audit.load(recorded(tmp_path), slo=vector_classes(), windows=False)
    with pytest.raises(ValueError, match="windows=True"):
        _ = found.windows


def test_strict_stops_at_the_first_broken_record(tmp_path: Path) -> None:
    good = frame(export(*stream_spans([T0_NS + 1], end_ns=T0_NS + 2)).SerializeToString(), T0_NS)
    path = tmp_path / "a.otlp"
    path.write_bytes(good + frame(b"\xff\xff\xff", T0_NS + 1) + good + frame(b"\xff\xff", T0_NS + 2) + good[:-3])
    assert audit.load(path).skipped.broken == 2
    with pytest.raises(audit.BrokenRecordError, match=rf"a\.otlp: record 2 at byte {len(good)}: not an OTLP"):
        audit.load(path, strict=True)
    path.write_bytes(good + good[:-3])
    assert audit.load(path, strict=True).skipped.counts["torn_tail"] == 1


def test_a_small_input_is_kept_whole_and_a_large_one_is_not() -> None:
    assert retained.ALL_TOKENS * 8 <= 32 * 2**20
    assert retained.WORST >= 9


def test_a_recording_of_one_message_has_as_many_spans_as_its_bytes_justify(tmp_path: Path) -> None:
    path = tmp_path / "all.pb"
    whole = export(*stream_spans([T0_NS + 1], end_ns=T0_NS + 2)).SerializeToString()
    other = export(*[request_span(name="GET /", attributes={})] * 200_001).SerializeToString()
    path.write_bytes(whole + other)
    inputs = Inputs([path])
    assert sum(batch.num_rows for batch in inputs.batches()) == 1
    assert not inputs.skipped.counts
