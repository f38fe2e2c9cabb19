"""What a tenant's streams make others write is limited by rule; what is left out is counted, nothing enforced is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from actions.orders import NOW_NS, decision
from hypothesis import given
from hypothesis import strategies as st

from otel_llm.actions.sinks.console import Console
from otel_llm.actions.sinks.sinks import Sinks
from otel_llm.actions.sinks.write_limits import BURST, MOST_ALLOWANCES, PER_S, SAY_EVERY_NS, WriteLimits
from otel_llm.live.user_metrics import UserMetrics
from otel_llm.rules.decisions.decision_records import Decision, read_decided
from otel_llm.rules.decisions.files import DecisionFiles, read_back
from otel_llm.rules.decisions.transitions import newest, read_record
from otel_llm.shared.clock import FakeClock

S = 1_000_000_000
MANY = 5 * BURST


def shadow(number: int, after_s: float = 0.0, *, tenant: str = "default", rule: str = "R", **more: Any) -> Decision:
    """Return the one action of a firing on stream `number`."""
    made = decision(number, action="migrate", now_ns=NOW_NS + round(after_s * S), rule_hash=rule, outcome="shadow")
    stream = (number.to_bytes(16, "big"), number.to_bytes(8, "big"), tenant, 0)
    return replace(made, mode="shadow", rule=rule, stream=stream, **more)


def end(of: Decision, after_s: float = 1.0) -> Decision:
    now_ns = of.now_ns + round(after_s * S)
    return replace(of, now_ns=now_ns, flip_ns=now_ns, state="resolved", action=None, mode=None, outcome="resolved")


class Written:
    """The sinks of a service that write to a file and to a list."""

    def __init__(self, path: Path) -> None:
        self.path, self.console = path, list[str]()
        self.files = DecisionFiles(path)
        self.sinks = Sinks(FakeClock(NOW_NS), Console(self.console.append), UserMetrics(), self.files)

    def records(self) -> list[dict[str, Any]]:
        return [record for line in read_back(self.path) if (record := read_record(line)) is not None]

    def left_out(self) -> int:
        return newest(read_back(self.path), 1).left_out

    def lines(self, rule: str = "R") -> list[str]:
        return [line for line in self.console if line.startswith(f"RULE    {rule}: migrate")]


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Written]:
    made = Written(tmp_path / "decisions")
    yield made
    made.files.close()


def test_of_many_at_once_so_many_are_written_and_the_others_counted(written: Written) -> None:
    written.sinks.decided([shadow(number) for number in range(MANY)])
    written.sinks.tick(NOW_NS + SAY_EVERY_NS - 1)
    assert (len(written.records()), len(written.lines()), written.left_out()) == (BURST, BURST, 0)
    written.sinks.tick(NOW_NS + SAY_EVERY_NS)
    assert written.left_out() == written.sinks.limits.decisions_left_out == MANY - BURST
    assert written.console[-1].startswith(f"RULE    R: {MANY - BURST} decisions left out in 0.0 s")
    written.sinks.tick(NOW_NS + 2 * SAY_EVERY_NS)
    written.sinks.tick()
    assert written.left_out() == MANY - BURST
    assert written.sinks.decided_count == MANY
    assert written.sinks.recent_decisions.of("default")[-1]["trace_id"] == f"{MANY - 1:032x}"


def test_the_stop_writes_the_counts_that_are_not_due(written: Written) -> None:
    written.sinks.decided([shadow(number) for number in range(MANY)])
    written.sinks.tick()
    assert written.left_out() == MANY - BURST


def test_the_allowance_comes_back_with_time(written: Written) -> None:
    written.sinks.decided([shadow(number) for number in range(MANY)])
    written.sinks.decided([shadow(MANY + number, 2.0) for number in range(MANY)])
    assert len(written.records()) == BURST + 2 * PER_S
    written.sinks.decided([shadow(3 * MANY + number, 10_000.0) for number in range(MANY)])
    assert len(written.records()) == 2 * BURST + 2 * PER_S


@pytest.mark.parametrize("other", [{"tenant": "other"}, {"rule": "Other"}])
def test_no_tenant_and_no_rule_uses_up_the_allowance_of_another(written: Written, other: dict[str, Any]) -> None:
    written.sinks.decided([shadow(number) for number in range(MANY)])
    written.sinks.decided([shadow(1, **other)])
    assert len(written.records()) == BURST + 1


def test_a_firing_is_written_with_its_end_or_neither_is(written: Written) -> None:
    firings = [shadow(number) for number in range(MANY)]
    written.sinks.decided(firings)
    written.sinks.decided([end(one) for one in reversed(firings)])
    found = written.records()
    assert [one["trace_id"] for one in found[:BURST]] == [one["trace_id"] for one in reversed(found[BURST:])]
    assert written.sinks.limits.decisions_left_out == 2 * (MANY - BURST)


def test_all_actions_of_a_firing_are_written_or_none_is(written: Written) -> None:
    both = [one for number in range(MANY) for one in (shadow(number), shadow(number, action_index=1))]
    written.sinks.decided(both)
    assert Counter(Counter(one["trace_id"] for one in written.records()).values()) == {2: BURST}


def test_what_is_enforced_is_written_with_its_end(written: Written) -> None:
    written.sinks.decided([shadow(number) for number in range(MANY)])
    enforced = [replace(shadow(number), mode="enforce", outcome="unconfirmed") for number in range(MANY, 2 * MANY)]
    beside = [shadow(number) for number in range(MANY, 2 * MANY)]
    written.sinks.decided([one for pair in zip(beside, enforced, strict=True) for one in pair])
    written.sinks.decided([end(one) for one in enforced])
    found = Counter((one["trace_id"], one["mode"]) for one in written.records()[BURST:])
    assert len(found) == 3 * MANY
    assert written.sinks.limits.decisions_left_out == MANY - BURST


def test_an_enforced_action_after_a_firing_that_was_left_out_has_its_end(written: Written) -> None:
    written.sinks.decided([shadow(number) for number in range(MANY)])
    again = replace(shadow(MANY - 1, 0.1), mode="enforce", outcome="unconfirmed")
    written.sinks.decided([again])
    written.sinks.decided([end(again)])
    assert [one["mode"] for one in written.records()[BURST:]] == ["enforce", None]


def test_a_restart_makes_what_was_left_out_again_and_nothing_else(written: Written) -> None:
    firings = [shadow(number) for number in range(MANY)]
    written.sinks.decided(firings)
    written.sinks.tick()
    known, broken = read_decided(read_back(written.path))
    assert broken == 0
    assert known == {one.key for one in firings[:BURST]}


def test_lines_of_verdicts_have_a_limit_for_each_tenant() -> None:
    limits = WriteLimits()
    found = [limits.admit_verdict(tenant, NOW_NS) for tenant in ("a", "b") for _ in range(MANY)]
    assert found == 2 * ([True] * BURST + [False] * (MANY - BURST))
    assert [(one.tenant, one.rule, one.count) for one in limits.due()] == [
        ("a", "", MANY - BURST),
        ("b", "", MANY - BURST),
    ]
    assert limits.verdicts_left_out == 2 * (MANY - BURST)


def test_of_verdicts_there_is_a_line_and_no_record(written: Written) -> None:
    for _ in range(MANY):
        written.sinks.limits.admit_verdict("acme", NOW_NS)
    written.sinks.tick()
    assert written.console == [f"{MANY - BURST} verdicts of tenant acme left out in 0.0 s (docs/rules.md, Left out)"]
    assert list(read_back(written.path)) == []


def test_however_many_tenants_there_are_each_is_counted_and_few_are_kept() -> None:
    limits = WriteLimits(burst=1)
    tenants = MOST_ALLOWANCES + 500
    for number in range(tenants):
        assert limits.admit([shadow(one, tenant=f"t{number}") for one in range(3)]) == [True, False, False]
    assert len(limits) == MOST_ALLOWANCES
    assert Counter(one.tenant for one in limits.due()) == {f"t{number}": 1 for number in range(tenants)}
    assert limits.decisions_left_out == 2 * tenants


STEPS = st.tuples(st.integers(0, 6), st.integers(0, 40), st.sampled_from(("shadow", "enforce", "end")))


@given(st.lists(STEPS, max_size=40))
def test_each_decision_is_written_or_counted_and_an_end_with_its_firing(steps: list[tuple[int, int, str]]) -> None:
    limits = WriteLimits(burst=2, per_s=1)
    firing: dict[int, bool] = {}
    now_s = counted = 0
    for number, wait_s, what in steps:
        now_s += wait_s // 10
        made = shadow(number, now_s)
        if what == "end":
            if number not in firing:
                continue
            made, was = end(made, 0.0), firing.pop(number)
            assert limits.admit([made]) == [was]
        elif number not in firing:
            made = replace(made, mode=what)  # type: ignore[arg-type]
            (firing[number],) = limits.admit([made])
            assert firing[number] or what == "shadow"
        counted += sum(one.count for one in limits.due(made.now_ns))
    counted += sum(one.count for one in limits.due())
    assert counted == limits.decisions_left_out
