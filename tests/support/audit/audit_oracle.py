"""The audit's rows and windows, stream by stream in plain Python: what its batches must give to the bit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from support.slo.stated_total import judged_tokens

from otel_llm.audit.input.stream_batch import to_batch
from otel_llm.audit.kernel.judge_batch import judge_batch
from otel_llm.audit.kernel.window_totals import Group, Windows, window_partials
from otel_llm.formats.assemble.assembler import Assembler
from otel_llm.formats.assemble.resolved import Assembled
from otel_llm.formats.otlp.export_request import decode
from otel_llm.formats.rows import Row, judged_row, unjudged_row
from otel_llm.slo.classes import SloClass, SloClasses
from otel_llm.slo.fluid.fluid_rate import fluid_tbt_ns, targets
from otel_llm.slo.ledger import MOST_WINDOWS, NOTHING, Ledger, window_start
from otel_llm.slo.metrics import REQUESTS
from otel_llm.slo.request import arrivals, judge
from otel_llm.slo.verdict import Verdict
from otel_llm.slo.windows import WindowTotals


@dataclass
class Judged:
    """One stream with its row, its verdict (None if nothing can be said) and the class that judged it."""

    row: Row
    verdict: Verdict | None
    fluid_tbt_ns: int | None
    slo: SloClass
    assembled: Assembled


def one_by_one(streams: Iterable[Assembled], classes: SloClasses, counts: Counter[str] | None = None) -> list[Judged]:
    """Judge streams one by one; `counts` gets `unknown_class` and `skewed_tokens`."""
    counted = Counter[str]() if counts is None else counts
    found = []
    for one in streams:
        known = one.resolved
        slo, unknown = classes.choose(known.declared_class, known.attributes)
        counted["unknown_class"] += unknown
        if not known.complete or known.commit_ns is None:
            row = unjudged_row(known, slo.name, one.events, slo.reads)
            found.append(Judged(row, None, None, slo, one))
            continue
        commit_ns = known.commit_ns
        end_ns = commit_ns if known.end_ns is None else known.end_ns
        times_ns, kinds = recorded_ns, _ = one.events.expanded()
        if (anew := judged_tokens(times_ns, kinds, commit_ns, known.stated)) is not None:
            times_ns, kinds = anew
            known = replace(known, token_basis="estimated")
        codes = None if kinds is None else list(kinds)
        verdict = judge(times_ns, commit_ns, end_ns, known.outcome, slo, codes, known.input_tokens)
        counted["skewed_tokens"] += sum(time < commit_ns for time in recorded_ns)
        read = arrivals(times_ns, commit_ns, kinds, slo.reads).read
        row = judged_row(known, slo.name, dict(verdict.columns()), len(recorded_ns))
        found.append(Judged(row, verdict, fluid_tbt_ns(read, targets(slo.objective)[0]), slo, one))
    return found


def windows_one_by_one(
    judged: Iterable[Judged], window_ns: int, lateness_ns: int, counts: Counter[str] | None = None
) -> list[Row]:
    """Charge windows stream by stream; `counts` gets `shifted` and `not_spread`."""
    windows = Windows()
    for one in judged:
        if one.assembled.resolved.foreign is None or one.assembled.times_ns:
            _charge(one, window_ns, lateness_ns, windows)
    if counts is not None:
        counts.update(windows.counts)
    return windows.rows(window_ns)


def _charge(one: Judged, window_ns: int, lateness_ns: int, windows: Windows) -> None:
    resolved, slo = one.assembled.resolved, one.slo
    group = Group(slo.name, resolved.model, resolved.instance, resolved.measured_at)
    shift_ns = resolved.shift_ns(lateness_ns)
    commit_ns, end_ns = resolved.commit_ns, resolved.end_ns

    def at(start_ns: int) -> WindowTotals:
        return windows.at(start_ns, group)

    if commit_ns is not None or end_ns is not None:
        windows.counts["shifted"] += shift_ns != 0
    if commit_ns is None:
        if end_ns is not None:
            at(window_start(end_ns - shift_ns, window_ns)).ended([(resolved.outcome, None)])
        return
    times_ns, kinds = one.assembled.events.expanded()
    if not resolved.complete:
        times_ns, kinds = times_ns[: resolved.known_tokens], None if kinds is None else kinds[: resolved.known_tokens]
    seen = arrivals(times_ns, commit_ns, kinds, slo.reads)
    read_ns = [commit_ns + time for time in seen.read]
    last_ns = commit_ns + (seen.every[-1] if seen.every else 0)
    end_ns = max(last_ns, commit_ns if end_ns is None else end_ns)
    known_until_ns = end_ns if resolved.complete else resolved.known_until_ns or commit_ns
    first = window_start(commit_ns - shift_ns, window_ns)
    last = window_start(end_ns - shift_ns, window_ns)
    at(first).started()
    at(last).ended([(resolved.outcome, one.verdict)])
    ledger = Ledger(slo, commit_ns)
    if last - first > MOST_WINDOWS * window_ns:
        windows.counts["not_spread"] += 1
        first = last - MOST_WINDOWS * window_ns
    for start_ns in range(first, last, window_ns):
        charge = ledger.advance(read_ns, start_ns + window_ns + shift_ns, known_until_ns)
        if charge is not NOTHING:
            at(start_ns).charge((charge,))
    at(last).charge((ledger.close(one.verdict),))


def audited(
    deliveries: Iterable[tuple[int, ExportTraceServiceRequest]], classes: SloClasses, window_ns: int, lateness_ns: int
) -> tuple[list[Row], list[Row]]:
    """Return the rows and the windows that the audit gives of exports with their receipt times (unix ns)."""
    assembler = Assembler()
    for receipt_ns, message in sorted(deliveries, key=lambda one: one[0]):
        assembler.add(decode(message, receipt_ns))
    batch = to_batch(assembler.finish())
    judged = judge_batch(batch, classes)
    windows = Windows()
    windows.add(window_partials(batch, judged, classes, window_ns, lateness_ns))
    return judged.select(list(REQUESTS)).to_pylist(), windows.rows(window_ns)
