"""A collector that died goes on as if it had not: the same windows and decisions, none of them twice, and every row.

`pytest --hypothesis-profile=long tests/collector/test_replay_restart.py` lets 25 times as many die.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from rules.scripted import one_rule
from support.chance import chances
from support.core.core_cases import SECOND, at, commit, ends, request, segment
from support.core.core_fleets import Delivery, Fleet, fleet
from support.core.core_restart import Crash, Restarted, unbroken
from support.core.core_rules import rule_set
from support.examples import examples
from support.otlp import IDENTITY

from otel_llm import semconv
from otel_llm.collector.restart import Windows, written_windows
from otel_llm.evaluate.timers import Timeouts
from otel_llm.formats.rows import Row
from otel_llm.rules.decisions.decision_records import Decision
from otel_llm.rules.files.ruleset import RuleSet
from otel_llm.rules.files.slo_file import load_slo


def by_stream(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (str(row["trace_id"]), str(row["span_id"]), int(row["choice"] or 0)))


def by_group(windows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    names = ("window_start_unix_nano", "slo_class", "model", "instance", "measured_at")
    return sorted(windows, key=lambda row: [str(row[name] or "") for name in names])


def in_order(decisions: Iterable[Decision]) -> list[Decision]:
    return sorted(decisions, key=repr)


def check(drawn: Fleet, crash: Crash, folder: Path) -> Restarted:
    """Let a collector die and start again, and compare it with one that did not."""
    left = unbroken(drawn, crash)
    again = Restarted(drawn, crash, left, folder)
    assert by_group([*left.windows, *again.windows]) == by_group(left.later.windows)
    assert in_order([*left.decisions, *again.noted.decisions_made]) == in_order(left.later.decisions)
    assert by_stream(again.noted.rows) == by_stream(left.rows)
    assert replace_metered(again) == left.later.totals()
    return again


def replace_metered(again: Restarted) -> dict[Any, tuple[int, int, float, float]]:
    """Return what the second run's counters come to: what the first has counted is not in them."""
    counted = again.left.later
    return replace(counted, metered=again.noted.metered).totals()


def crash_of(random: Random, drawn: Fleet) -> Crash:
    number = len(drawn.deliveries)
    journaled = random.randint(1, number)
    evaluated = max(1, journaled - (random.randint(0, 2) if random.random() < 0.3 else 0))
    checkpoint = max(1, evaluated - random.choice((0, 0, 1, 3)))
    last_ns = drawn.deliveries[journaled - 1].receipt_ns
    next_ns = drawn.deliveries[journaled].receipt_ns if journaled < number else last_ns + 20 * SECOND
    passes = evaluated == journaled and next_ns > last_ns and random.random() < 0.6
    return Crash(journaled, evaluated, checkpoint, random.randrange(last_ns, next_ns) if passes else None)


@settings(max_examples=examples(40))
@given(chances())
@example(Random(6))  # a stream with records on both sides of the resume point
@example(Random(5031))
@example(Random(5100))  # one whose request span is later than the verdict
@example(Random(11207677))  # one whose group changes while a window is charged early: it gets another slot
def test_a_collector_that_died_goes_on_as_if_it_had_not(
    tmp_path_factory: pytest.TempPathFactory, random: Random
) -> None:
    drawn = fleet(
        random, streams=random.randint(2, 14), calm=random.random() < 0.4, spread_s=random.choice((0, 20, 60))
    )
    drawn = replace(drawn, rules=rule_set(random))
    if drawn.deliveries:
        check(drawn, crash_of(random, drawn), tmp_path_factory.mktemp("run") / "journal")


# One story each: request 9 goes on for forty seconds and is in flight when the collector dies, so that the resume
# point is its beginning, at 10 s.

Deliveries = list[tuple[float, list[Span]]]


def long_stream(*, stated: bool = True) -> Deliveries:
    first = commit(10_000, request=9, stated=IDENTITY if stated else {})
    reported: Deliveries = [(10_000, [first])]
    reported += [(10_000 + 1000 * seq, [segment(seq, 0, [], 10_000 + 1000 * seq, request=9)]) for seq in range(1, 40)]
    return reported


def end_of_it() -> Deliveries:
    return [(50_000, [segment(40, 0, [], 50_000, request=9, stated=ends(0, 41))])]


def story(*parts: Deliveries, rules: RuleSet | None = None, window_s: int = 1) -> tuple[Fleet, int]:
    """Return a fleet, and how many of its exports were journaled when the collector died, after 40 s."""
    reported = sorted((one for part in parts for one in part), key=lambda one: one[0])
    deliveries = tuple(Delivery(at(ms), tuple(spans)) for ms, spans in reported)
    timeouts = Timeouts(SECOND, 120 * SECOND)
    drawn = Fleet(load_slo(), rules or RuleSet(()), timeouts, window_s * SECOND, deliveries)
    return drawn, sum(ms < 40_000 for ms, _ in reported)


def died(drawn: Fleet, journaled: int, folder: Path, *, checkpoint: bool = True) -> Restarted:
    return check(drawn, Crash(journaled, journaled, journaled if checkpoint else None), folder)


def test_what_overtook_the_end_of_a_stream_starts_nothing(tmp_path: Path) -> None:
    over: Deliveries = [
        (9_000, [commit(9_000)]),
        (9_900, [segment(2, 1, [], 9_900, stated=ends(1, 3))]),
        (10_500, [segment(1, 0, [9_400], 9_500)]),
    ]
    again = died(*story(long_stream(), over), tmp_path)
    assert again.left.point is not None
    assert again.left.point[0] == at(10_000)


@pytest.mark.parametrize("ms", [10_500, 39_500, 45_000, 90_000])
def test_what_is_repeated_starts_nothing(tmp_path: Path, ms: float) -> None:
    last = segment(1, 1, [], 9_900, stated=ends(0, 2))
    over: Deliveries = [
        (9_000, [commit(9_000)]),
        (9_900, [last, request(9_900)]),
        (ms, [last, request(9_900), commit(9_000)]),
    ]
    died(*story(long_stream(), over), tmp_path)


def test_a_request_span_after_the_verdict_starts_nothing(tmp_path: Path) -> None:
    over: Deliveries = [
        (8_000, [commit(8_000), segment(1, 0, [], 8_100, stated=ends(0, 2))]),
        (10_500, [request(8_100, start=8_000, stated={**IDENTITY, **ends(0, 2)})]),
        (41_000, [request(8_100, start=8_000, stated={**IDENTITY, **ends(0, 2)})]),
    ]
    died(*story(long_stream(), over, rules=one_rule("gap_seconds >= 0.5")), tmp_path)


def test_a_request_span_that_came_before_the_first_segment_is_read_again(tmp_path: Path) -> None:
    early: Deliveries = [
        (9_500, [request(9_450, number=9, start=9_400, stated={**IDENTITY, semconv.GEN_AI_REQUEST_MODEL: "n"})])
    ]
    again = died(*story(long_stream(stated=False), early, end_of_it()), tmp_path)
    assert [row["model"] for row in again.noted.rows] == ["n"]


def test_a_request_span_is_not_for_one_choice_alone_though_the_other_is_over(tmp_path: Path) -> None:
    sibling: Deliveries = [
        (9_000, [commit(9_000, request=9, choice=1)]),
        (9_900, [segment(1, 0, [], 9_900, request=9, choice=1, stated=ends(0, 2))]),
        (12_500, [request(12_400, number=9, start=9_000, stated={**IDENTITY, semconv.OUTCOME: "completed"})]),
    ]
    again = died(*story(long_stream(), sibling, end_of_it()), tmp_path)
    assert [(row["choice"], row["tokens"]) for row in again.noted.rows] == [(0, 0)]


def test_others_spans_that_wait_are_judged_once(tmp_path: Path) -> None:
    others: Deliveries = [
        (39_500, [request(39_400, number=3, start=39_000, stated={**IDENTITY, semconv.GEN_AI_LATENCY_TTFT: 0.25})]),
        (39_900, [request(39_800, number=4, start=39_700, stated={**IDENTITY, **ends(0, 0)})]),
    ]
    again = died(*story(long_stream(), others), tmp_path)
    assert {str(row["trace_id"])[-1] for row in again.noted.rows} >= {"3", "4"}


@pytest.mark.parametrize("off_s", [-3600, -3, 3, 3600])
def test_streams_whose_clock_is_off(tmp_path: Path, off_s: int) -> None:
    off: Deliveries = []
    for seq in range(40):
        end = 20_000 + 500 * seq + off_s * 1000
        spans = [segment(seq, 2 * seq - 2, [end - 300, end - 100], end, request=3)] if seq else []
        off.append((20_000 + 500 * seq, spans or [commit(end, request=3)]))
    off.append((41_000, [segment(40, 78, [], 40_000 + off_s * 1000, request=3, stated=ends(78, 41))]))
    died(*story(long_stream(), off, rules=one_rule("gap_seconds > 0.25", keep_firing_for="100ms")), tmp_path)


def test_a_rule_that_fires_is_not_reported_again_and_ends_once(tmp_path: Path) -> None:
    stalled: Deliveries = [
        (20_000, [commit(20_000, request=3)]),
        (20_200, [segment(1, 0, [20_100], 20_200, request=3)]),
        *[(20_000 + 1000 * seq, [segment(seq, 1, [], 20_000 + 1000 * seq, request=3)]) for seq in range(2, 30)],
        (50_000, [segment(30, 1, [49_900], 50_000, request=3, stated=ends(2, 31))]),
    ]
    again = died(*story(long_stream(), stalled, rules=one_rule("gap_seconds > 0.5 && tokens > 0")), tmp_path)
    assert [one.outcome for one in again.left.decisions] == ["done"]
    assert [one.outcome for one in again.noted.decisions_made] == ["ended"]


def test_what_was_journaled_and_never_evaluated_is_found_at_the_restart(tmp_path: Path) -> None:
    over: Deliveries = [
        (38_000, [commit(38_000)]),
        (39_100, [segment(1, 0, [38_100, 39_000], 39_100)]),
        (39_200, [segment(2, 2, [], 39_200, stated=ends(2, 3)), request(39_200)]),
    ]
    drawn, journaled = story(long_stream(), over, rules=one_rule("tokens_read > 1"))
    again = check(drawn, Crash(journaled, journaled - 2, journaled - 3), tmp_path)
    assert [one.outcome for one in again.noted.decisions_made if one.subject[0][-1] == 1] == ["done", "ended"]


def test_without_a_checkpoint_what_is_kept_is_read(tmp_path: Path) -> None:
    over: Deliveries = [(8_000, [commit(8_000), segment(1, 0, [], 8_100, stated=ends(0, 2))])]
    drawn, journaled = story(long_stream(), over, end_of_it())
    died(drawn, journaled, tmp_path, checkpoint=False)


def test_who_comes_after_a_silence_is_charged_early_as_after_a_restart(tmp_path: Path) -> None:
    # Exports that were long under way: of the window that closes at 22 s, and is charged from 21.5 s on.
    numbers = range(10, 20)
    reported: Deliveries = [
        (9_000, [commit(9_000), segment(1, 0, [], 9_000, stated=ends(0, 2)), request(9_000)]),
        (21_450, [commit(20_500, request=number, stated={}) for number in numbers]),
        (21_470, [segment(1, 0, [20_700], 21_000, request=number) for number in numbers]),
        (21_990, [segment(2, 1, [], 21_100, request=number, stated=ends(1, 3)) for number in numbers]),
        (21_990, [request(21_100, number=number, start=20_500) for number in numbers]),
    ]
    drawn, _ = story(reported)
    check(drawn, Crash(3, 3, 3), tmp_path)


def test_a_restart_on_nothing_begins_anew(tmp_path: Path) -> None:
    drawn, _ = story(long_stream(), end_of_it())
    again = Restarted(drawn, Crash(0, 0, None), unbroken(drawn, Crash(0, 0, None)), tmp_path)
    assert len(again.noted.rows) == 1
    assert again.pipeline.replayed == 0


# The files of windows.


def row(start_ns: int, model: str | None = "m") -> dict[str, Any]:
    return {
        "window_start_unix_nano": start_ns,
        "slo_class": "chat",
        "model": model,
        "instance": None,
        "measured_at": "client",
        "tokens_read": 7,
    }


def lines_of(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(one) + "\n" for one in rows)


def test_windows_that_were_written_are_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "windows.jsonl"
    path.write_text(lines_of(row(10), row(20, None)) + "[]\nnonsense\n{}\n7\n" + lines_of(row(30))[:-9])
    written: list[dict[str, object]] = []
    windows = Windows(written.append, written_windows(path), closed_until_ns=10)
    for one in (row(5), row(10), row(20), row(20, None), row(30)):
        windows.take(one)
    assert written == [row(20), row(30)]
    assert path.read_text().endswith("7\n")  # the torn line is gone: the next one must not be glued to it


def test_there_are_none_at_first(tmp_path: Path) -> None:
    assert written_windows(tmp_path / "none.jsonl") == set()
