"""The prefix of known fates: it waits for the slow ones, and a passed deadline is a miss at once."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from otel_llm.bench.capacity.fate_log import FateLog, StreamSoFar
from otel_llm.bench.capacity.objective import HELD, MISSED, parse_objective
from otel_llm.slo.classes import Deadline, SloClass

MS = 10**6
CHAT = SloClass()
"""A reader of 5 tokens/s who may wait for 1 s in all."""


def stream(
    commit: int, *tokens: int, end: int | None = None, outcome: str = "completed", slo: SloClass = CHAT
) -> StreamSoFar:
    """Return a request; times in ms."""
    ended = None if end is None else outcome
    return StreamSoFar(slo, commit * MS, [time * MS for time in tokens], None, None if end is None else end * MS, ended)


def known(text: str, streams: list[StreamSoFar], now: int) -> list[list[int]]:
    log = FateLog(parse_objective(text).clauses)
    log.extend(streams.__getitem__, len(streams), now * MS)
    fates: list[list[int]] = log.fates.tolist()
    assert len(log.waits) == log.fates.shape[1]
    return fates


def test_a_slow_request_holds_back_the_fast_ones_behind_it() -> None:
    streams = [stream(0, 100, end=100), stream(1, 100), stream(2, 100, end=100)]
    assert known("ttft_p99 <= 1s", streams, 200) == [[HELD]]
    streams[1] = stream(1, 100, end=200)
    assert known("ttft_p99 <= 1s", streams, 200) == [[HELD, HELD, HELD]]


def test_a_passed_deadline_is_a_miss_before_the_end() -> None:
    streams = [stream(0), stream(500, 600, end=600)]
    assert known("ttft_p99 <= 1s", streams, 1000) == [[]]
    assert known("ttft_p99 <= 1s", streams, 1001) == [[MISSED, HELD]]
    assert known("attainment >= 0.9", streams, 1001) == [[]], "the reader may wait 1.2 s for the first token"
    assert known("attainment >= 0.9", streams, 1201) == [[MISSED, HELD]]
    assert known("idle_p99 <= 1s", streams, 1201) == [[MISSED, HELD]]


def test_every_clause_must_be_known() -> None:
    streams = [stream(0)]
    assert known("ttft_p99 <= 1s && attainment >= 0.9", streams, 1100) == [[], []]
    assert known("ttft_p99 <= 1s && attainment >= 0.9", streams, 1300) == [[MISSED], [MISSED]]


def test_what_can_still_be_made_good_is_no_miss_yet() -> None:
    assert known("fluidity_ok_share >= 0.9", [stream(0)], 60_000) == [[]]
    mean = SloClass(deadline=Deadline("ttft_tpot", 1000 * MS, 100 * MS))
    # 900 ms between the first two tokens; eight fast ones would bring the mean below 100 ms.
    assert known("attainment >= 0.9", [stream(0, 100, slo=mean)], 1000) == [[]]
    assert known("attainment >= 0.9", [stream(0, slo=mean)], 1001) == [[MISSED]]


def test_it_goes_on_where_it_stopped() -> None:
    log = FateLog(parse_objective("ttft_p99 <= 1s").clauses)
    streams = [stream(place, place + 10, end=place + 10) for place in range(600)]
    streams[300] = stream(300)
    log.extend(streams.__getitem__, 600, 700 * MS)
    assert log.fates.shape == (1, 300)
    streams[300] = stream(300, 900, end=900)
    log.extend(streams.__getitem__, 600, 1000 * MS)
    assert log.fates.shape == (1, 600)
    assert log.waits[300] == 0.6
    assert np.allclose(np.delete(log.waits, 300), 0.01)


@given(st.lists(st.tuples(st.integers(1, 2000), st.integers(0, 3000)), min_size=1, max_size=30), st.integers(0, 4000))
def test_an_early_fate_is_that_of_the_end(rows: list[tuple[int, int]], now: int) -> None:
    """Whatever is known at an instant stays so: `rows` are the waits of first and second tokens."""
    whole = [stream(0, first, first + second, end=first + second) for first, second in rows]
    so_far = [
        one if one.end_ns is not None and one.end_ns <= now * MS
        else one._replace(tokens_ns=[t for t in one.tokens_ns if t <= now * MS], end_ns=None, outcome=None)
        for one in whole
    ]  # fmt: skip
    text = "attainment >= 0.9 && idle_p99 <= 500ms && ttft_p99 <= 300ms"
    early, late = known(text, so_far, now), known(text, whole, 10_000)
    assert [row[: len(early[0])] for row in late] == early
