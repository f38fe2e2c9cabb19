"""The plain data of a backtest for `--format json`. Times are unix ns, lengths seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from otel_llm.backtest.backtest import Backtest
    from otel_llm.backtest.comparison import Comparison, RuleCompared, Side


def summary(found: Backtest) -> dict[str, Any]:
    """Return all results."""
    recording, comparison = found.recording, found.comparison
    live = found.live
    return {
        "journal": {
            "files": recording.files,
            "bytes": recording.size,
            "records": recording.records,
            "first_unix_nano": recording.first_ns,
            "last_unix_nano": recording.last_ns,
            "until_unix_nano": found.until_ns,
            "received_before_the_one_before": recording.backwards,
            "skipped": dict(recording.skipped.counts)
            | {name: number for name, number in found.counts.items() if number},
            "streams": {"judged": found.judged, "in_flight": found.in_flight, "without_beginning": found.headless},
        },
        "decision_files": None
        if live is None
        else {
            "lines": live.lines,
            "unreadable": live.broken,
            "of_other_times": live.outside,
            "left_out": live.left_out,
            "left_out_found_again": live.found_again,
        },
        "decisions": _decisions(comparison),
        "actions": {
            "hypothetical": comparison.actions.hypothetical,
            "first": comparison.actions.first,
            "done_then_and_decided": comparison.actions.done_both,
            "done_then_and_not_decided": comparison.actions.done_then_only,
        },
        "rules": [_rule(rule, compared=comparison.compared) for rule in comparison.rules],
    }


def _decisions(comparison: Comparison) -> dict[str, Any]:
    records = comparison.records
    if not comparison.compared:
        return {"new": records.new}
    return {
        "then": records.then,
        "new": records.new,
        "same": records.same,
        "in_order": records.in_order,
        "identical": records.identical,
        "fields_that_differ": dict(records.fields),
        "examples": [{"side": side, **record} for side, record in records.examples],
    }


def _rule(rule: RuleCompared, *, compared: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "rule": rule.name,
        "group": rule.group,
        "scope": rule.scope,
        "new": _side(rule.new) | {"rests_on": dict(rule.rests)},
    }
    if compared:
        found |= {
            "then": _side(rule.then),
            "same": rule.same,
            "moved": {"earlier": rule.earlier, "later": rule.later, "median_shift_seconds": rule.shift_s},
            "only_then": rule.only_then,
            "only_new": rule.only_new,
            "examples": {
                kind: [{"subject": subject, "flip_unix_nano": flip_ns} for subject, flip_ns in examples]
                for kind, examples in rule.examples.items()
            },
        }
    return found


def _side(side: Side) -> dict[str, Any]:
    actions: dict[str, dict[str, int]] = {}
    for (verb, outcome), number in sorted(side.actions.items()):
        actions.setdefault(verb, {})[outcome] = number
    return {"rule_hash": side.hash or None, "firings": side.firings, "ends": dict(side.ends), "actions": actions}
