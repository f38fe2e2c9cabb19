"""Rules of instances and classes over a crash: the journal is read again, and what fires is not decided twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.core.core_cases import at, commit, ends, request, segment
from support.core.core_fleets import Delivery, Fleet
from support.core.core_restart import Crash, Restarted, unbroken
from support.evaluate.groups import scoped
from support.otlp import IDENTITY

from otel_llm.evaluate.timers import Timeouts
from otel_llm.rules.decisions.decision_records import Decision
from otel_llm.rules.files.ruleset import RuleSet
from otel_llm.rules.files.slo_file import load_slo

SECOND = 1_000_000_000


def fleet(rules: RuleSet) -> tuple[Fleet, int]:
    """Return a stream from 10 s to 50 s, and requests that end at each second up to 30 s; death comes at 40 s."""
    reported = [(10_000.0, [commit(10_000, request=9, stated=IDENTITY)])]
    reported += [(10_000.0 + 1000 * seq, [segment(seq, 0, [], 10_000 + 1000 * seq, request=9)]) for seq in range(1, 40)]
    reported += [(50_000.0, [segment(40, 0, [], 50_000, request=9, stated=ends(0, 41))])]
    for number in range(10, 30):
        ms = 1000.0 * number + 500
        spans = [
            commit(ms - 300, request=100 + number),
            segment(1, 0, [ms - 50], ms, request=100 + number, stated=ends(1, 2)),
            request(ms, number=100 + number, start=ms - 300),
        ]
        reported.append((ms, spans))
    reported.sort(key=lambda one: one[0])
    deliveries = tuple(Delivery(at(ms), tuple(spans)) for ms, spans in reported)
    drawn = Fleet(load_slo(), rules, Timeouts(SECOND, 120 * SECOND), SECOND, deliveries)
    return drawn, sum(ms < 40_000 for ms, _ in reported)


def restarted(rules: RuleSet, folder: Path) -> tuple[list[Decision], list[Decision], list[Decision]]:
    """Return what was decided before death, after it, and by a collector that did not die."""
    drawn, journaled = fleet(rules)
    crash = Crash(journaled, journaled, journaled)
    left = unbroken(drawn, crash)
    again = Restarted(drawn, crash, left, folder)
    return left.decisions, again.noted.decisions_made, left.later.decisions


@pytest.mark.parametrize(
    ("when", "before", "after"),
    [
        ("streams >= 1", 1, 1),  # fires at 10 s and is over at 50 s
        ("streams >= 1 && starving >= 1", 1, 1),
        ("streams == 0", 0, 2),  # fires at 50 s, after the restart, until its class is over
    ],
)
def test_what_streams_in_flight_decide_goes_on(when: str, before: int, after: int, tmp_path: Path) -> None:
    first, second, unbroken_one = restarted(scoped("class", when), tmp_path / "journal")
    assert (len(first), len(second)) == (before, after)
    assert [one.key for one in (*first, *second)] == [one.key for one in unbroken_one]
    assert [dict(one.facts) for one in (*first, *second)] == [dict(one.facts) for one in unbroken_one]


def test_what_ended_before_is_forgotten(tmp_path: Path) -> None:
    """Twenty requests ended in the minute before; the stream of 50 s is the first of the new windows."""
    first, second, _ = restarted(scoped("class", "requests_1m >= 5"), tmp_path / "journal")
    assert [(one.state, one.facts["requests_1m"]) for one in first] == [("firing", 5)]
    (end,) = second
    assert (end.state, end.outcome, end.facts["requests_1m"]) == ("resolved", "resolved", 0)
    assert end.flip_ns == at(40_000)


def test_windows_that_begin_empty_fire_nothing_twice(tmp_path: Path) -> None:
    first, second, unbroken_one = restarted(
        scoped("class", "requests_1m >= 5", keep_firing_for="15s"), tmp_path / "journal"
    )
    assert len(first) == 1
    assert [one.outcome for one in second] == ["resolved"]
    assert len(unbroken_one) == 2


def test_without_the_decision_file_it_fires_anew(tmp_path: Path) -> None:
    drawn, journaled = fleet(scoped("class", "streams >= 1"))
    crash = Crash(journaled, journaled, journaled)
    left = replace(unbroken(drawn, crash), decisions=[])
    made = Restarted(drawn, crash, left, tmp_path / "journal").noted.decisions_made
    assert [(one.state, one.flip_ns) for one in made] == [("firing", at(40_000)), ("resolved", at(50_000))]
