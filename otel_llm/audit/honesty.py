"""What each figure can be improved by without serving a reader better, and the rules that a number depends on.

The page prints these tables; the documentation says the same at more length.
"""

from __future__ import annotations

from typing import Final

from otel_llm.audit.page import table

GAMES: Final = (
    (
        "TBT (tbt_p99_s, tbt_max_s)",
        "Hold tokens back and release them evenly, just under the threshold: no reader gets a token sooner.",
        "idle_s: it does not get better",
    ),
    (
        "TPOT (tpot_s)",
        "Nothing needs to be done: one long stall is averaged away by many short gaps.",
        "idle_s, stalls",
    ),
    (
        "TTFT (ttft_s, ttfo_s)",
        "Send the first token early and let the second one wait.",
        "idle_decode_s, stalls",
    ),
    (
        "goodput, attainment",
        "Give up requests that are late already: each is lost anyway, and the server is free for others.",
        "smooth goodput, with the aborted share beside it",
    ),
    (
        "fluidity_index",
        (
            "Hold one token a little longer: deadlines restart after a miss and forgive the part of a deadline beyond "
            "the whole ones. A burst counts as so many deadlines met."
        ),
        "fluidity_line: no delay can raise it",
    ),
    (
        "smooth goodput, benefit",
        "Give up at once: an answer that was never delivered costs no more than the wait up to its end.",
        "the aborted share beside it; or agree on an abort_penalty",
    ),
    (
        "idle_s",
        "No delay can lower it. But what an early first token leaves of its allowance hides as much of a later stall.",
        "idle_decode_s, the same from the first token on",
    ),
)
"""(figure, how to better it without serving anybody better, what to look at beside it)."""

RULES: Final = (
    (
        "Percentiles",
        (
            "Nearest rank: the smallest value that at least that share of the values do not exceed, so that “99 % "
            "waited at most x” is true as said. Tools that interpolate show other numbers."
        ),
    ),
    (
        "Replies of one token",
        "Judged by their first deadline alone; TBT and TPOT are null. Other tools disagree here.",
    ),
    (
        "Nothing to read",
        (
            "A reply that ended as meant without a token to read (a bare tool call) is not judged: idle, deadlines, "
            "fluidity, met and benefit are null, neither perfect nor zero."
        ),
    ),
    (
        "Ends that are no completion",
        (
            "Cancelled, abandoned, disconnected, error, lost: the wait from the last token to the end is idle time and "
            "missed deadlines. error and disconnected are never met; the others are “cannot say”, unless a deadline "
            "had passed already."
        ),
    ),
    (
        "Attainment",
        "Met / (met + not met). What nobody can say is left out and counted beside it as undetermined.",
    ),
    (
        "Missing tokens",
        "Make a request incomplete: it keeps what was seen, is not judged, and is counted beside the figures.",
    ),
    (
        "Client and server",
        "They see one request at different times: two rows, never added up. Every figure is for one measured_at.",
    ),
    (
        "Rates",
        "Tokens and requests per second are over the time from the first commit to the last end of the whole input.",
    ),
)
"""(what, the rule)."""


def section() -> str:
    """Return both tables as the closing part of the page."""
    headings = ["Figure", "Better figures, nobody served better", "Look also at"]
    games = table(headings, GAMES, words=(1, 2), kind="notes")
    rules = table(["", "Rule"], RULES, words=(1,), kind="notes")
    return (
        "<section><h2>What the figures can hide</h2><p>Every figure can be improved without serving one reader "
        "better. Look at two that are gamed in different ways.</p>"
        f"{games}</section><section><h2>How it is counted</h2>{rules}</section>"
    )
