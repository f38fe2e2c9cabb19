"""What a collector said live beside what the audit says of its journal: tokens, windows, decisions."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.commands import run
from support.integration.interop_journal import received_spans
from support.patience import WAIT_S

from otel_llm.rules.decisions.decision_records import LEFT_OUT

Row = dict[str, Any]
Group = tuple[str | None, ...]
GROUP = ("slo_class", "model", "instance", "measured_at")
ADDITIVE = (
    *("requests_started", "requests_ended", "met_true", "met_false", "met_null"),
    *("incomplete", "aborted", "tokens_read"),
)
"""Columns that add up to the same total wherever something that came late was put."""
BY_STREAM = ("requests_started", "requests_ended")
"""Those that count every stream once, however it was judged."""


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


def window_differences(live: Iterable[Row], audit: Iterable[Row], leave_out: Disturbed) -> list[str]:
    """Return where two tables of windows differ in any column, but for those that were disturbed."""
    sides = [
        {(row["window_start_unix_nano"], *group_of(row)): row for row in rows if not leave_out.touches(row)}
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


def total_differences(live: Iterable[Row], audit: Iterable[Row], given_up: Mapping[Group, int]) -> list[str]:
    """Return where the two tables do not add up to the same, group by group: lost, or counted twice.

    Each stream that was `given_up` live, though the journal has more of it, may change the verdicts of its group by
    one, and the tokens read; every stream began and ended once all the same.
    """
    here, there = _totals(live), _totals(audit)
    return [
        f"{group}: {name}: live {here[group][name]}, audited {there[group][name]}"
        for group in sorted(here.keys() | there.keys(), key=str)
        for name in ADDITIVE
        if here[group][name] != there[group][name]
        and (name in BY_STREAM or abs(here[group][name] - there[group][name]) > _may_differ(name, given_up[group]))
    ]


def _may_differ(name: str, given_up: int) -> float:
    return math.inf if given_up and name == "tokens_read" else given_up


def given_up(journal: Path, rows: Iterable[Row], lost_after_ns: int) -> Counter[Group]:
    """Return the number of streams, by group, that were silent for so long that they were given up, and then went on.

    On a machine that stands still, a collector is killed and started for longer than `--lost-after`. Its streams are
    lost then, live; the audit has the rest of them.
    """
    groups = {row["trace_id"]: group_of(row) for row in rows}
    last: dict[str, int] = {}
    silent: set[str] = set()
    for receipt_ns, span in received_spans(journal):
        trace = span.trace_id.hex()
        if span.name == "otel_llm.segment" and trace in groups:
            if receipt_ns - last.get(trace, receipt_ns) >= lost_after_ns:
                silent.add(trace)
            last[trace] = receipt_ns
    return Counter(groups[trace] for trace in silent)


def repeated_decisions(decisions: Iterable[Row]) -> list[tuple[Any, ...]]:
    """Return the decisions that were made more than once."""
    names = ("rule_hash", "trace_id", "span_id", "choice", "flip_unix_nano", "state", "action")
    counted = Counter(
        # Of an instance or a class the labels say which one it was.
        (*(row.get(name) for name in names), *sorted(row.get("labels", {}).items()))
        for row in decisions
        if LEFT_OUT not in row
    )
    return [key for key, number in counted.items() if number > 1]


@dataclass
class Disturbed:
    """When something came too late for its own windows: live, it was charged to others, in these spans of time."""

    spans: defaultdict[Group, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))

    def touches(self, row: Row) -> bool:
        """Return whether a window may differ for that."""
        start = row["window_start_unix_nano"]
        end = start + round(row["window_s"] * 1e9)
        return any(begin < end and start <= until for begin, until in self.spans[group_of(row)])

    def add(self, other: Disturbed) -> None:
        """Take those of another part of the load too."""
        for group, spans in other.spans.items():
            self.spans[group] += spans


def disturbed(journal: Path, rows: Iterable[Row], lateness_ns: int, lost_after_ns: int) -> Disturbed:
    """Return where live windows may differ from the audit's: where streams came late, or were given up as lost.

    From the commit of a stream with a segment so late that windows may have closed before, to that receipt,
    or to its end as shifted by the delay of its first segment, if that is later: such a stream is taken for one whose
    clock is wrong, and live windows take no times to come. Of one whose end was never seen to where it was given up.
    """
    arrived: set[bytes] = set()
    delay: dict[str, int] = {}
    late: dict[str, int] = {}
    last: dict[str, int] = {}
    for receipt_ns, span in received_spans(journal):
        if span.name == "otel_llm.segment" and span.span_id not in arrived:
            arrived.add(span.span_id)
            trace = span.trace_id.hex()
            last[trace] = receipt_ns
            delay.setdefault(trace, receipt_ns - span.end_time_unix_nano)
            if receipt_ns - span.start_time_unix_nano > lateness_ns:
                late[trace] = receipt_ns
    found = Disturbed()
    for row in rows:
        until_ns = late.get(row["trace_id"])
        if until_ns is not None:
            end_ns = row["start_unix_nano"] + round((row["e2e_s"] or 0) * 1e9)
            until_ns = max(until_ns, end_ns + delay[row["trace_id"]])
        if row["outcome"] == "lost":
            until_ns = last.get(row["trace_id"], 0) + lost_after_ns + lateness_ns
        if until_ns is not None:
            found.spans[group_of(row)].append((row["start_unix_nano"] or 0, until_ns + lateness_ns))
    return found


def group_of(row: Row) -> Group:
    """Return the labels of a window."""
    return tuple(row[name] for name in GROUP)


def _totals(rows: Iterable[Row]) -> defaultdict[Group, Counter[str]]:
    totals: defaultdict[Group, Counter[str]] = defaultdict(Counter)
    for row in rows:
        totals[group_of(row)].update({name: row[name] for name in ADDITIVE})
    return totals
