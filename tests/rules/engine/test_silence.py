"""Rules on the silence of a server, worked by hand: keep-alives, tokens behind a silence, news that comes late."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from rules.scripted import COMMIT, MS, Segment, one_rule, run, story

EMPTY_EVERY_MS = 250


def segments(tokens_ms: Iterable[int], bytes_ms: Iterable[int], until_ms: int, delay_ms: int = 20) -> list[Segment]:
    """Cut a stream every 250 ms; an empty segment states the newest of its bytes, tokens included."""
    tokens, heard = sorted(tokens_ms), sorted([*bytes_ms, *tokens_ms])
    found = [Segment(delay_ms * MS, 0, COMMIT)]
    for seq, end in enumerate(range(EMPTY_EVERY_MS, until_ms + 1, EMPTY_EVERY_MS), 1):
        inside = tuple(COMMIT + at * MS for at in tokens if end - EMPTY_EVERY_MS < at <= end)
        newest = max((at for at in heard if at <= end), default=None)
        byte_ns = 0 if inside or newest is None else COMMIT + newest * MS
        found.append(Segment((end + delay_ms) * MS, seq, COMMIT + end * MS, inside, last_byte_ns=byte_ns))
    return found


def reported(when: str, sent: list[Segment], until_ms: int, **settings: str) -> list[tuple[str, str, float]]:
    rules = one_rule(when, max_fact_age="60s", **settings)
    return [(state, outcome, round(at, 3)) for state, outcome, at in story(run(rules, sent, until_ms * MS))]


EVERY_500 = range(600, 20_000, 500)
"""Keep-alives behind a token at 100 ms."""


@pytest.mark.parametrize("when", ["gap_seconds > 2.0", "gap_seconds > 2.0 && silence_seconds < 3.0"])
@pytest.mark.parametrize("hold_s", [0, 1, 2])
def test_keep_alives_restart_nothing(when: str, hold_s: int) -> None:
    sent = segments([100], EVERY_500, 10_000)
    assert reported(when, sent, 10_000, for_=f"{hold_s}s") == [("firing", "done", 2_100 + 1_000 * hold_s)]


def test_a_keep_alive_ends_a_silence() -> None:
    sent = segments([100], [700], 10_000)
    assert reported("silence_seconds > 2.0", sent, 10_000) == [("firing", "done", 2_700)]
    assert reported("silence_seconds > 2.0", segments([100], EVERY_500, 10_000), 10_000) == []


@pytest.mark.parametrize("heard", [[], range(6_000, 20_000, 100)], ids=["tokens", "keep-alives"])
def test_what_fired_resolves_behind_a_silence(heard: Iterable[int]) -> None:
    tokens = [100, *([] if heard else range(6_000, 20_000, 100))]
    sent = segments(tokens, heard, 20_000)
    fired, resolved = reported("silence_seconds > 5.0", sent, 20_000, keep_firing_for="5s")
    assert fired == ("firing", "done", 5_100)
    assert resolved[:2] == ("resolved", "resolved")
    assert 11_000 <= resolved[2] <= 11_251  # the first byte may be known as late as the next segment's


def test_a_token_that_was_under_way_refutes_though_a_later_byte_is_known() -> None:
    sent = [
        Segment(20 * MS, 0, COMMIT),
        Segment(120 * MS, 1, COMMIT + 100 * MS, (COMMIT + 100 * MS,)),
        Segment(1_500 * MS, 2, COMMIT + 950 * MS, (COMMIT + 900 * MS,)),
        Segment(1_500 * MS, 3, COMMIT + 1_480 * MS, last_byte_ns=COMMIT + 1_470 * MS),
    ]
    for when in ("gap_seconds > 1.0", "gap_seconds > 1.0 && silence_seconds > 1.0", "silence_seconds > 1.0"):
        assert [one[:2] for one in reported(when, sent, 1_600)] == [("firing", "done"), ("resolved", "refuted")], when


def test_a_byte_that_was_under_way_refutes_and_a_later_one_does_not() -> None:
    first = [Segment(20 * MS, 0, COMMIT), Segment(120 * MS, 1, COMMIT + 100 * MS, (COMMIT + 100 * MS,))]
    for byte_ms, outcome in ((900, "refuted"), (1_300, "resolved")):
        late = Segment(1_500 * MS, 2, COMMIT + 1_480 * MS, last_byte_ns=COMMIT + byte_ms * MS)
        assert [one[1] for one in reported("silence_seconds > 1.0", [*first, late], 1_600)] == ["done", outcome]


@pytest.mark.parametrize("when", ["silence_seconds < 0.5", "-silence_seconds > -0.5", "0.5 > silence_seconds * 1.0"])
def test_a_silence_that_is_short_again_is_so_from_the_byte_on(when: str) -> None:
    sent = segments([100], [5_000], 6_000)
    found = reported(f"gap_seconds > 1.0 && {when}", sent, 6_000)
    assert found == [("firing", "done", 5_000.0), ("resolved", "resolved", 5_500)]


def heard(end_ms: int, seq: int, byte_ms: int = 0) -> Segment:
    return Segment((end_ms + 20) * MS, seq, COMMIT + end_ms * MS, last_byte_ns=COMMIT + byte_ms * MS if byte_ms else 0)


FIRST = [Segment(20 * MS, 0, COMMIT), Segment(120 * MS, 1, COMMIT + 100 * MS, (COMMIT + 100 * MS,))]


def test_a_silence_that_ended_before_resolve_when_held_counts_for_keep_firing_for() -> None:
    sent = [*FIRST, heard(1_010, 2, 1_000), heard(1_210, 3, 1_200)]
    settings = {"resolve_when": "age_seconds > 1.25", "keep_firing_for": "290ms"}
    assert reported("silence_seconds > 0.3", sent, 1_600, **settings)[:2] == [
        ("firing", "done", 400),
        ("resolved", "resolved", 1_290),  # the silence is short from 1,000 ms on
    ]


def test_a_byte_within_a_silence_that_was_already_judged_shortens_it() -> None:
    sent = [*FIRST, heard(700, 2), heard(750, 3, 450)]
    assert reported("silence_seconds < 0.2", sent, 1_600, keep_firing_for="500ms") == [
        ("firing", "done", 0),
        ("resolved", "resolved", 1_150),  # the byte at 450 ms holds until 650 ms, the first token until 300 ms
    ]
