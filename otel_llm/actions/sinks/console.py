"""The terminal output of `collect`: one readable line for each verdict that matters and each decision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from otel_llm.formats.records import tenant_words
from otel_llm.formats.spans.finish_reasons import CUT
from otel_llm.shared.formatting import plural
from otel_llm.shared.printable import LONGEST_LINE, printable

if TYPE_CHECKING:
    from otel_llm.formats.rows import Row
    from otel_llm.rules.decisions.decision_records import Decision, LeftOut

Echo = Callable[[str], None]

UNSAID: Final = "unsaid"
EXPLAINED: Final = {
    UNSAID: "no verdict: a part of the stream, or its end, is missing",
    "lost": "no end came within --lost-after: the sender died, or its last segment did not arrive",
    "disconnected": "the connection broke under a reader who still wanted the reply",
    "abandoned": "the application dropped the stream without closing it",
    "shadow": "the rule decided, and did nothing: its action is not `mode: enforce`",
    "unconfirmed": "the action was asked for, and was not seen to be done",
    "budget": "not done: the rule's budget is used up",
    "only_if": "not done: the action's only_if was not true",
    "expired": "not done: its ttl was over",
    "queued": "the alert waits: its receiver is away or behind, or the service is starting",
    "dropped: table full": "the alert is not sent: as many are kept as may be, and none may give way",
    "refuted": "it was not needed: the condition did not hold, or the stream went on before it was moved",
}
"""Our own terms on these lines. Each is explained once, after the first line that has it; see the glossary too."""
GLOSSARY: Final = "docs/glossary.md"
LIMITS: Final = "docs/rules.md, Left out"


@dataclass(slots=True)
class Console:
    """The writer of lines through `echo`; `verdicts` chooses which requests get a line: `bad`, `all` or `none`."""

    echo: Echo
    verdicts: str = "bad"
    explained: set[str] = field(default_factory=set)

    def wants(self, outcome: object, met: object, *, whole: bool = True) -> bool:
        """Tell whether a request gets a line."""
        if self.verdicts == "bad":
            return met is False or outcome in {"error", "disconnected", "lost"} or not whole
        return self.verdicts == "all"

    def wants_row(self, row: Row) -> bool:
        """Tell whether a request with this row gets a line."""
        return self.wants(row["outcome"], row["met"], whole=row["coverage"] in {1.0, None})

    def row(self, row: Row) -> None:
        """Write the line of a request."""
        self.echo(printable(verdict_line(row), LONGEST_LINE))
        self._explain(UNSAID if row["met"] is None else None, str(row["outcome"]))

    def note(self, text: str) -> None:
        """Write a sentence on how tokens are counted."""
        self.echo(printable(f"TOKENS  {text}", LONGEST_LINE))

    def decision(self, decision: Decision) -> None:
        """Write the line of a decision."""
        self.echo(printable(f"RULE    {decision}", LONGEST_LINE))
        self._explain(decision.outcome)

    def left_out(self, what: LeftOut) -> None:
        """Write how many lines of verdicts, or decisions of a rule, were left out."""
        of = f"RULE    {what.rule}: {plural(what.count, 'decision')}" if what.rule else plural(what.count, "verdict")
        since = f"in {(what.last_ns - what.first_ns) / 1e9:.1f} s"
        self.echo(printable(f"{of}{tenant_words(what.tenant)} left out {since} ({LIMITS})", LONGEST_LINE))

    def _explain(self, *words: str | None) -> None:
        for word in words:
            if word in EXPLAINED and word not in self.explained:
                self.explained.add(word)
                self.echo(f"        {word}: {EXPLAINED[word]} ({GLOSSARY})")


def verdict_line(row: Row) -> str:
    """Return one line on a request: its ids, its outcome, and what the reader felt."""
    return (
        f"{_met(row['met'])} {row['trace_id']}{_choice(row['choice'])}{tenant_words(row['tenant'])}"
        f" {row['slo_class']} {row['model'] or '-'}"
        f" {row['outcome']}{_cut(row['finish_reason'])}: {row['tokens'] if row['tokens'] is not None else '?'} tokens,"
        f" first text {duration(row['ttfo_s'])}, TTFT {duration(row['ttft_s'])}, idle {duration(row['idle_s'])},"
        f" fluidity {share(row['fluidity_index'])}"
        + (f", coverage {share(row['coverage'])}" if row["coverage"] not in {1.0, None} else "")
    )


def duration(value: object) -> str:
    """Format seconds for people; `-` if unknown."""
    if not isinstance(value, int | float):
        return "-"
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"


def share(value: object) -> str:
    """Format a number between 0 and 1 with three digits; `-` if unknown."""
    return f"{value:.3f}" if isinstance(value, int | float) else "-"


def _met(met: object) -> str:
    return "met    " if met is True else "MISSED " if met is False else f"{UNSAID} "


def _cut(reason: object) -> str:
    return f" (cut: {reason})" if reason in CUT else ""


def _choice(choice: object) -> str:
    return f"#{choice}" if choice else ""
