"""Tables for the page: how each figure can be improved without serving a reader better, and the rules of counting.

The documentation says the same at more length.
"""

from __future__ import annotations

from typing import Final

from otel_llm.audit.report.html_page import table

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
"""(figure, how to improve it without serving any reader better, what to look at beside it)."""

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
        "Met / (met + not met). Requests without a verdict are left out and counted beside it as undetermined.",
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


METHODS: Final = (
    (
        "Idle time (idle_s)",
        (
            "The reader's line gives token i until start + i/v, v the reading speed of the class; idle is the furthest "
            "that any token was behind it, never below 0. idle_decode_s: the same from the first token on."
        ),
        "Wang et al., eq. 5 and 9",
    ),
    (
        "Stalls",
        "The rises of that wait, token by token; tokens late one after another are one stall. They add up to idle_s.",
        "Wang et al., figure 2",
    ),
    (
        "Fluidity-index",
        (
            "Token deadlines met over all of them: the first after the TTFT target, each further one TBT later; early "
            "time is kept, and after a miss deadlines begin anew. fluidity_line: one line of deadlines throughout."
        ),
        "Etalon, section 4.1",
    ),
    (
        "Fluid token rate",
        "1 / the smallest TBT at which 99 % of the requests have a fluidity-index of 0.9.",
        "Etalon, section 5.1",
    ),
    (
        "Met, attainment",
        "Every deadline of the class's policy held: reading, dslo, ttft_tbt, ttft_tpot or e2e.",
        "PolyServe, section 4.6 (dslo)",
    ),
    (
        "Benefit",
        "Tokens read - alpha f(idle) - abort penalty: what a reply was worth to its reader.",
        "Wang et al., eq. 10",
    ),
    ("Smooth goodput", "Benefit per second; in a window, of what happened in the window.", "Wang et al., eq. 11"),
    (
        "Goodput",
        "Tokens of the requests that met their deadlines, per second, counted where they end.",
        "Zhong et al. (DistServe)",
    ),
    (
        "TTFT, TBT, TPOT",
        "First token since the commit; the gaps between tokens; (last - first) / (tokens - 1).",
        "Etalon, section 2.2",
    ),
    (
        "Requests in flight",
        "The mean over a window of how many requests were between their commit and their end on an instance.",
        "Little's law: it is started per second times their duration",
    ),
)
"""(figure, its definition, its source)."""


def games() -> str:
    """Return the table of what each figure hides."""
    headings = ["Figure", "Better figures, no reader served better", "Look also at"]
    return (
        "<p>Every figure can be improved without serving one reader better. Look at two that are gamed in different "
        f"ways.</p>{table(headings, GAMES, text_columns=(1, 2), kind='notes')}"
    )


def rules() -> str:
    """Return the table of the rules of counting."""
    return table(["", "Rule"], RULES, text_columns=(1,), kind="notes")


def methods() -> str:
    """Return the table of definitions with their sources."""
    return table(["Figure", "Definition", "Source"], METHODS, text_columns=(1, 2), kind="notes")
