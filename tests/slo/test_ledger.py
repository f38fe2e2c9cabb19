"""Windows are additive: what a request owes them adds up, to the bit, to its verdict, however it is cut."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.slo import oracle
from support.slo.requests import Request, cases

from otel_llm.slo.classes import TOOL, Benefit, SloClass
from otel_llm.slo.exact import ExactSum
from otel_llm.slo.ledger import NOTHING, Charge, Ledger, window_charges, window_start
from otel_llm.slo.request import judge
from otel_llm.slo.stream import Stream
from otel_llm.slo.verdict import Verdict

S = 10**9
WINDOWS = (1, 3, 10, 1000)  # in units of the reader's pace


@dataclass(frozen=True)
class Judged:
    """A request with its verdict, as the ledger wants it."""

    slo: SloClass
    request: Request
    verdict: Verdict
    read_ns: list[int]

    @property
    def end_ns(self) -> int:
        return self.request.commit_ns + self.verdict.end_ns

    def charges(self, window_ns: int) -> list[tuple[int, Charge]]:
        return window_charges(self.slo, self.request.commit_ns, self.read_ns, self.end_ns, self.verdict, window_ns)


def judged(slo: SloClass, request: Request) -> Judged:
    stream = Stream(slo, request.commit_ns, request.input_tokens)
    stream.extend(request.tokens_ns, request.kinds)
    verdict = stream.finish(request.end_ns, request.outcome)
    return Judged(slo, request, verdict, list(stream.read_ns))


def never_waited(slo: SloClass, read_ns: list[int]) -> bool:
    """Tell by the oracle whether the reader of these tokens had text from the first to the last."""
    return bool(read_ns) and oracle.waited([time - read_ns[0] for time in read_ns], 0, slo.pace_ns) == 0


def assert_adds_up(charges: list[Charge], verdict: Verdict) -> None:
    terms = [term for charge in charges for term in (charge.tokens_read, *charge.costs)]
    assert sum(charge.tokens_read for charge in charges) == verdict.tokens_read
    assert sum(charge.idle_ns for charge in charges) == (verdict.idle_ns or 0)
    assert math.fsum(terms) == ExactSum(terms).value == (verdict.benefit or 0.0)


def idle_at(one: Judged, x_ns: int) -> int:
    """The in-flight l, by the oracle, from the tokens that had arrived before x."""
    request = one.request
    x_ns = max(request.commit_ns, min(x_ns, one.end_ns))
    arrivals = [time - request.commit_ns for time in one.read_ns if time < x_ns]
    return oracle.waited([*arrivals, x_ns - request.commit_ns], one.slo.start_ns + one.slo.pace_ns, one.slo.pace_ns)


@settings(max_examples=examples(300))
@given(cases(), st.sampled_from(WINDOWS), st.integers(-(10**12), 10**12))
def test_every_window_owes_what_happened_in_it_and_the_last_one_the_rest(
    case: tuple[SloClass, Request], size: int, shift: int
) -> None:
    slo, request = case
    moved = request.moved(shift)
    one = judged(slo, moved)
    window_ns = size * slo.pace_ns
    charges = one.charges(window_ns)
    assert_adds_up([charge for _, charge in charges], one.verdict)
    by_start = dict(charges)
    assert len(by_start) == len(charges)
    last = window_start(one.end_ns, window_ns)
    assert all(window_start(moved.commit_ns, window_ns) <= start <= last for start in by_start)
    for start in range(window_start(moved.commit_ns, window_ns), last, window_ns):
        charge = by_start.get(start, NOTHING)
        assert charge.tokens_read == sum(start <= time < start + window_ns for time in one.read_ns)
        assert charge.idle_ns == idle_at(one, start + window_ns) - idle_at(one, start)


@settings(max_examples=examples(300))
@given(cases(), st.sampled_from(WINDOWS), st.lists(st.integers(0, 5), min_size=1, max_size=5))
def test_charging_a_live_stream_gives_the_recorded_charges_to_the_bit(
    case: tuple[SloClass, Request], size: int, ahead: list[int]
) -> None:
    slo, request = case
    one = judged(slo, request)
    window_ns = size * slo.pace_ns
    ledger = Ledger(slo, request.commit_ns)
    live: list[tuple[int, Charge]] = []
    received = Ledger(slo, request.commit_ns)
    last = window_start(one.end_ns, window_ns)
    starts = range(window_start(request.commit_ns, window_ns), last, window_ns)
    for index, start in enumerate(starts):
        # The windows close late: tokens of later windows are there already, how many differs.
        reported = start + window_ns * (1 + ahead[index % len(ahead)])
        seen = [time for time in one.read_ns if time < reported]
        live.append((start, ledger.advance(seen, start + window_ns, min(reported, one.end_ns))))
        # With `unbroken` the ledger looks at no token, and charges the same.
        unbroken = received.advance(
            seen, start + window_ns, min(reported, one.end_ns), unbroken=never_waited(slo, seen)
        )
        assert unbroken == live[-1][1]
    live.append((last, ledger.close(one.verdict)))
    assert received.close(one.verdict) == live[-1][1]
    assert [(start, charge) for start, charge in live if charge is not NOTHING] == one.charges(window_ns)


@settings(max_examples=examples(300))
@given(cases(), st.lists(st.tuples(st.integers(0, 90), st.integers(0, 90), st.integers(0, 12)), max_size=8))
def test_whatever_comes_late_the_charges_add_up(
    case: tuple[SloClass, Request], steps: list[tuple[int, int, int]]
) -> None:
    slo, request = case
    one = judged(slo, request)
    stream = Stream(slo, request.commit_ns, request.input_tokens)
    kinds = [0] * len(request.tokens_ns) if request.kinds is None else request.kinds
    ledger, received = Ledger(slo, request.commit_ns), Ledger(slo, request.commit_ns)
    charges = []
    taken, upto = 0, request.commit_ns
    for x, known, tokens in steps:
        stream.extend(request.tokens_ns[taken : taken + tokens], kinds[taken : taken + tokens])
        taken = min(len(request.tokens_ns), taken + tokens)
        x_ns, known_ns = (request.commit_ns + step * slo.pace_ns // 2 for step in (x, known))
        charges.append(ledger.advance(stream.read_ns, x_ns, known_ns))
        unbroken = stream.running.unbroken
        assert unbroken == never_waited(slo, list(stream.read_ns))
        assert received.advance(stream.read_ns, x_ns, known_ns, unbroken=unbroken) == charges[-1]
        # What is charged is what all tokens that are there by now say about the time up to the latest x.
        upto = max(upto, x_ns)
        arrivals = [time - request.commit_ns for time in stream.read_ns if time < upto]
        first_due = slo.start_ns + slo.pace_ns
        waited = oracle.waited([*arrivals, min(upto, known_ns) - request.commit_ns], first_due, slo.pace_ns)
        assert (ledger.tokens_read, ledger.idle_ns) == (len(arrivals), waited)
    charges.append(ledger.close(one.verdict))
    assert_adds_up(charges, one.verdict)


@given(cases(), st.sampled_from(WINDOWS))
def test_a_request_that_cannot_be_judged_gets_everything_back_where_it_ends(
    case: tuple[SloClass, Request], size: int
) -> None:
    slo, request = case
    one = judged(slo, request)
    window_ns = size * slo.pace_ns
    charges = window_charges(slo, request.commit_ns, one.read_ns, one.end_ns, None, window_ns)
    assert ExactSum(term for _, charge in charges for term in (charge.tokens_read, *charge.costs)) == ExactSum()
    assert sum(charge.tokens_read for _, charge in charges) == 0
    assert sum(charge.idle_ns for _, charge in charges) == 0


def test_a_bare_tool_call_gets_its_waiting_back_in_the_window_of_its_end() -> None:
    slo = SloClass()
    verdict = judge([3 * S], 0, 3 * S, "completed", slo, [TOOL])
    charges = window_charges(slo, 0, [], 3 * S, verdict, S)
    assert [(start, charge.idle_ns) for start, charge in charges] == [
        (0, 800_000_000),
        (S, S),
        (2 * S, S),
        (3 * S, -2_800_000_000),
    ]
    assert math.fsum(charges[-1][1].costs) == pytest.approx(7.0)


def test_waiting_after_the_last_token_of_a_reply_that_was_complete_is_given_back() -> None:
    slo = SloClass()
    verdict = judge([100_000_000], 0, 2 * S, "completed", slo)
    charges = window_charges(slo, 0, [100_000_000], 2 * S, verdict, S)
    assert [(start, charge.tokens_read, charge.idle_ns) for start, charge in charges] == [
        (0, 1, 600_000_000),
        (S, 0, S),
        (2 * S, 0, -1_600_000_000),
    ]


def test_nothing_is_charged_for_a_time_nobody_reported() -> None:
    ledger = Ledger(SloClass(), 0)
    assert ledger.advance([], 5 * S, S).idle_ns == 800_000_000
    assert ledger.advance([], 6 * S, S) is NOTHING
    late = ledger.advance([100_000_000, 4 * S], 7 * S, 4 * S + 1)
    assert late.tokens_read == 2
    assert late.idle_ns == 3_600_000_000 - 800_000_000


def test_a_token_that_disproves_a_wait_gives_it_back() -> None:
    ledger = Ledger(SloClass(benefit=Benefit(alpha=1.0)), 0)
    assert math.fsum(ledger.advance([], S, S).costs) == pytest.approx(-0.8)
    back = ledger.advance([100_000_000], 2 * S, S)
    assert (back.tokens_read, back.idle_ns) == (1, -200_000_000)
    assert math.fsum(back.costs) == pytest.approx(0.2)


def test_a_closed_ledger_charges_nothing_more() -> None:
    ledger = Ledger(SloClass(), 0)
    assert ledger.close(judge([S], 0, S, "completed", SloClass())) is not NOTHING
    assert ledger.close(None) is NOTHING
    assert ledger.advance([S], 9 * S, 9 * S) is NOTHING


def test_time_does_not_run_backwards() -> None:
    ledger = Ledger(SloClass(), 0)
    ledger.advance([100, 200], S, S)
    assert ledger.advance([100, 200], 150, S) is NOTHING


def test_windows_begin_at_multiples_of_their_length() -> None:
    assert window_start(0, 10) == 0
    assert window_start(9, 10) == 0
    assert window_start(10, 10) == 10
    assert window_start(-1, 10) == -10
