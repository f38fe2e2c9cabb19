"""The circuit breaker: when it opens, what it lets through, when it closes."""

from __future__ import annotations

from otel_llm.actions.execute.circuit_breaker import FIRST_OPEN_S, HANGS, LONGEST_OPEN_S, CircuitBreaker

S = 10**9


def opened(at_ns: int = 0) -> CircuitBreaker:
    breaker = CircuitBreaker()
    for _ in range(HANGS):
        breaker.begin()
        breaker.end(at_ns, hung=True)
    return breaker


def test_one_answer_begins_the_count_anew() -> None:
    breaker = CircuitBreaker()
    for hung in [*[True] * (HANGS - 1), False, *[True] * (HANGS - 1)]:
        breaker.begin()
        breaker.end(0, hung=hung)
        assert not breaker.open
    assert breaker.refusal(0) is None
    breaker.end(0, hung=True)
    assert breaker.open


def test_it_lets_one_action_through_and_closes_with_its_answer() -> None:
    breaker = opened()
    until_ns = round(FIRST_OPEN_S * S)
    assert breaker.refusal(until_ns - 1) is not None
    assert breaker.refusal(until_ns) is None
    breaker.begin()
    refusal = breaker.refusal(until_ns)
    assert refusal is not None
    assert "is being sent again" in refusal
    breaker.end(until_ns, hung=False)
    assert (breaker.open, breaker.refusal(until_ns)) == (False, None)


def test_an_action_that_was_not_sent_after_all_is_no_answer() -> None:
    breaker = opened()
    breaker.begin()
    breaker.end(100 * S, hung=None)
    assert breaker.open
    assert breaker.refusal(100 * S) is None


def test_actions_that_were_sent_before_it_opened_do_not_keep_it_open_for_longer() -> None:
    breaker = opened()
    for _ in range(50):
        breaker.end(S, hung=True)
    assert breaker.refusal(round(FIRST_OPEN_S * S)) is None


def test_it_stays_open_for_twice_as_long_each_time_up_to_a_limit() -> None:
    breaker, now_ns, waits = opened(), 0, []
    for _ in range(100):
        now_ns += round(LONGEST_OPEN_S * S)
        assert breaker.refusal(now_ns) is None
        breaker.begin()
        breaker.end(now_ns, hung=True)
        waits.append(next(s for s in range(10**6) if breaker.refusal(now_ns + s * S) is None))
    assert waits[:4] == [10, 20, 40, 60]
    assert {*waits[3:]} == {60}
