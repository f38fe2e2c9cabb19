"""What a collector said live beside what the audit says of its journal: tokens, windows, decisions."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from support.commands import WAIT_S, run
from support.interop_journal import received_spans

Row = dict[str, Any]
Group = tuple[str | None, ...]
GROUP = ("slo_class", "model", "instance", "measured_at")
ADDITIVE = (
    *("requests_started", "requests_ended", "met_true", "met_false", "met_null"),
    *("incomplete", "aborted", "tokens_read"),
)
"""Columns that add up to the same total wherever something that came late was put."""


def read_rows(path: Path) -> list[Row]:
    """Return the objects of a file of JSON lines; a line that is none is an error."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def audited(journal: Path, folder: Path, window: str, timeout_s: float = WAIT_S) -> tuple[list[Row], list[Row]]:
    """Run `otel-llm audit` on a journal, writing into `folder`; return its rows and its windows."""
    requests, windows = folder / "audited-requests.jsonl", folder / "audited-windows.jsonl"
    done = run("audit", journal, "--requests", requests, "--windows", windows, "--window", window, timeout_s=timeout_s)
    assert done.returncode == 0, done.stdout + done.stderr
    return read_rows(requests), read_rows(windows)


def missing_tokens(acknowledged: Mapping[str, Sequence[int]], rows: Iterable[Row]) -> dict[str, tuple[int, int]]:
    """Return the streams whose tokens are not those acknowledged: {trace id: (acknowledged, audited)}."""
    found = {row["trace_id"]: int(row["tokens"]) for row in rows}
    return {
        trace: (tokens, found.get(trace, 0))
        for trace, (_, tokens) in acknowledged.items()
        if found.get(trace, 0) != tokens
    }


def repeated_windows(windows: Iterable[Row]) -> list[tuple[Any, ...]]:
    """Return the windows of a group that were written more than once."""
    counted = Counter((row["window_start_unix_nano"], *group_of(row)) for row in windows)
    return [key for key, number in counted.items() if number > 1]


def window_differences(live: Iterable[Row], audit: Iterable[Row], leave_out: Iterable[Group] = ()) -> list[str]:
    """Return where two tables of windows differ in any column, but for the groups to leave out."""
    left_out = set(leave_out)
    sides = [
        {(row["window_start_unix_nano"], *group_of(row)): row for row in rows if group_of(row) not in left_out}
        for rows in (live, audit)
    ]
    found = []
    for key in sorted(sides[0].keys() | sides[1].keys(), key=str):
        here, there = (side.get(key) for side in sides)
        if here is None or there is None:
            found.append(f"{key}: only {'audited' if here is None else 'live'}: {here or there}")
        elif here != there:
            columns = {name: (here.get(name), value) for name, value in there.items() if here.get(name) != value}
            found.append(f"{key}: (live, audited) {columns or (list(here), list(there))}")
    return found


def total_differences(live: Iterable[Row], audit: Iterable[Row], leave_out: Iterable[Group] = ()) -> list[str]:
    """Return where the two tables do not add up to the same, group by group: lost, or counted twice."""
    left_out = set(leave_out)
    here, there = _totals(live), _totals(audit)
    return [
        f"{group}: {name}: live {here[group][name]}, audited {there[group][name]}"
        for group in sorted((here.keys() | there.keys()) - left_out, key=str)
        for name in ADDITIVE
        if here[group][name] != there[group][name]
    ]


def repeated_decisions(decisions: Iterable[Row]) -> list[tuple[Any, ...]]:
    """Return the decisions that were made more than once."""
    names = ("rule_hash", "trace_id", "span_id", "choice", "flip_unix_nano", "state", "action")
    counted = Counter(tuple(row.get(name) for name in names) for row in decisions)
    return [key for key, number in counted.items() if number > 1]


def late_groups(journal: Path, rows: Iterable[Row], lateness_ns: int) -> set[Group]:
    """Return the groups with a stream of which a segment came so late that windows may have closed before."""
    arrived: set[bytes] = set()
    late: set[str] = set()
    for receipt_ns, span in received_spans(journal):
        if span.name == "otel_llm.segment" and span.span_id not in arrived:
            arrived.add(span.span_id)
            if receipt_ns - span.start_time_unix_nano > lateness_ns:
                late.add(span.trace_id.hex())
    return {group_of(row) for row in rows if row["trace_id"] in late}


def lost_groups(rows: Iterable[Row]) -> set[Group]:
    """Return the groups with a stream whose end was never seen: that is decided after its windows closed."""
    return {group_of(row) for row in rows if row["outcome"] == "lost"}


def group_of(row: Row) -> Group:
    """Return what windows are told apart by."""
    return tuple(row[name] for name in GROUP)


def _totals(rows: Iterable[Row]) -> defaultdict[Group, Counter[str]]:
    totals: defaultdict[Group, Counter[str]] = defaultdict(Counter)
    for row in rows:
        totals[group_of(row)].update({name: row[name] for name in ADDITIVE})
    return totals
