"""Who waited: a perfect run has nobody, and the wait for the first text is not mixed with those after it."""

from __future__ import annotations

from support.audit.judged import judged

from otel_llm.audit.kernel.waits import sentences, waits


def test_a_perfect_run_has_no_reader_who_waited_too_long() -> None:
    # A first text after 300 ms is 100 ms of idle time at 5 tokens/s, and one stall: as the class allows.
    table = judged(30, idle_s=0.1, stalls=1, met=True, ttfo_s=0.3, idle_decode_s=0.0)
    assert sentences(waits(table)) == (
        "None of the 30 readers that could be judged waited longer than the class allows. The first text came within "
        "300 ms for half of them and within 300 ms for 99 %. No reader waited between tokens."
    )


def test_waits_before_and_after_the_first_text_are_distinguished() -> None:
    table = judged(
        5,
        outcome=["completed", "completed", "error", "cancelled", "completed"],
        idle_s=[0.0, 2.0, 3.0, 0.5, None],
        met=[True, False, False, None, None],
        ttfo_s=[0.1, 0.2, 0.3, 0.4, 9.0],
        idle_decode_s=[0.0, 2.0, 3.0, 0.5, 9.0],
    )
    found = waits(table)
    assert (found.judged, found.beyond, found.broken) == (4, 1, 1)
    assert sentences(found) == (
        "1 of the 4 readers that could be judged waited longer than the class allows. The server's side broke off "
        "1 reply. The first text came within 200 ms for half of them and within 400 ms for 99 %. Between tokens "
        "3 readers waited: 2 s in the median, 3 s at most."
    )


def test_nothing_judged_is_reported() -> None:
    assert sentences(waits(judged(2))) == "No request could be judged."
