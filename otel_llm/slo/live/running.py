"""The running judgement of the read tokens: two instants and a few counts, updated by every token."""

from __future__ import annotations

from itertools import accumulate, pairwise, repeat
from typing import TYPE_CHECKING

from otel_llm.slo.token_events import tokens_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_llm.slo.classes import SloClass


class Running:
    """The state after the tokens read so far; all instants in ns on the stream's axis.

    `dry_ns` is when a reader who began with the first token runs out of text: t_1 + n P and every wait since (before
    the first token: earlier than any token). `due_ns` is Etalon's deadline of the next token, None while the first
    one's is unknown. A token later than one of them moves it; tokens that are not, however many, cost O(1) in all.
    """

    __slots__ = (
        "_slo", "allowance_ns", "commit_ns", "count", "dry_ns", "due_ns", "first_due_ns", "first_ns", "last_ns",
        "late", "missed", "passed", "stalled", "stalls",
    )  # fmt: skip

    def __init__(self, slo: SloClass, commit_ns: int, input_tokens: int | None) -> None:
        first_due = slo.fluidity.first_deadline_ns(input_tokens)
        self._slo = slo
        self.commit_ns = commit_ns
        self.count = 0
        self.first_ns = self.last_ns = commit_ns  # of the tokens read; meaningless while there are none
        self.allowance_ns = commit_ns + slo.start_ns + slo.pace_ns
        """The reading line's deadline of the next token, d_{n+1}."""
        self.dry_ns = commit_ns - 1
        self.stalls = 0
        self.stalled = False
        """Whether the last token ended a stall, which then goes on with the next."""
        self.first_due_ns = None if first_due is None else commit_ns + first_due
        self.due_ns = self.first_due_ns
        self.late = 0
        self.missed = 0
        self.passed = False
        """Whether a token missed its deadline under `dslo` or `ttft_tbt` (the other policies need no memory)."""

    def apply(self, times: Sequence[int], counts: Sequence[int] | None = None) -> None:
        """Apply sorted token events, at least one, none before the commit or before the last applied.

        `counts`: the tokens of each event, None for one each. Only the first token of an event can be late: the next
        deadline and the reader are beyond it then.
        """
        slo, count, last = self._slo, tokens_of(times, counts), times[-1]
        if last <= self.dry_ns:
            self.dry_ns += count * slo.pace_ns
            self.stalled = False
        else:
            self._read_on(times, counts)
        if self.due_ns is not None:
            if last <= self.due_ns and (self.count or slo.fluidity.ttft_credit == "carry"):
                self.due_ns += count * slo.fluidity.tbt_ns
            else:
                self.due_ns = self._count_misses(self.due_ns, times, counts)
        if not self.passed and slo.deadline.next_ns is not None:
            self.passed = self._breaks_deadline(times, counts, slo.deadline.next_ns)
        if not self.count:
            self.first_ns = times[0]
        self.count += count
        self.last_ns = last
        self.allowance_ns += count * slo.pace_ns

    @property
    def unbroken(self) -> bool:
        """Tell whether the reader has never waited since the first token read."""
        return self.count > 0 and self.dry_ns == self.first_ns + self.count * self._slo.pace_ns

    def idle_ns(self, x_ns: int) -> int:
        """Return l at an instant not before the last token: max(M_n, x - d_{n+1})."""
        return max(0, max(self.dry_ns, x_ns) - self.allowance_ns)

    def idle_decode_ns(self, x_ns: int) -> int | None:
        """Return the wait since the first token read, at an instant not before the last; None before the first."""
        if not self.count:
            return None
        return max(self.dry_ns, x_ns) - self.first_ns - self.count * self._slo.pace_ns

    def waiting(self, x_ns: int) -> bool:
        """Tell whether the reader has waited since the last token."""
        return x_ns > max(self.dry_ns, self.allowance_ns)

    def starving(self, x_ns: int) -> bool:
        """Tell whether tokens were read and the runway is negative: the reader has read all and waits for more."""
        return self.count > 0 and self.dry_ns < x_ns

    def misses(self, x_ns: int | None) -> int | None:
        """Return the missed deadlines; with x also those overdue then, as if a token arrived at x."""
        if self.due_ns is None:
            return None
        tbt = self._slo.fluidity.tbt_ns
        overdue = 0 if x_ns is None or x_ns <= self.due_ns else 1 + (x_ns - self.due_ns) // tbt
        if self._slo.fluidity.count == "tokens":
            return self.late + (overdue > 0)
        return self.missed + overdue

    def line_misses(self, x_ns: int | None) -> int | None:
        """Return ceil(M_n / tbt) of the line without resets; with x as if a token arrived then."""
        if self.due_ns is None or self.first_due_ns is None:
            return None
        tbt = self._slo.fluidity.tbt_ns
        due = self.due_ns if x_ns is None else max(self.due_ns, x_ns)
        return -(-max(0, due - self.first_due_ns - self.count * tbt) // tbt)

    def deadline_passed(self, x_ns: int | None) -> bool:
        """Tell whether the class's policy was broken; with x also by a next token that is missing by then."""
        deadline = self._slo.deadline
        first_due, following = self.commit_ns + deadline.first_ns, deadline.next_ns or 0
        if deadline.policy == "reading":
            return self.idle_ns(self.commit_ns if x_ns is None else x_ns) > deadline.first_ns
        if deadline.policy == "e2e":
            return (self.last_ns if x_ns is None else x_ns) > first_due
        if not self.count:
            return x_ns is not None and x_ns > first_due
        if deadline.policy == "ttft_tpot":
            return self.first_ns > first_due or self.last_ns > self.first_ns + (self.count - 1) * following
        next_due = first_due + self.count * following if deadline.policy == "dslo" else self.last_ns + following
        return self.passed or (x_ns is not None and x_ns > next_due)

    def _read_on(self, times: Sequence[int], counts: Sequence[int] | None) -> None:
        pace, dry, due = self._slo.pace_ns, self.dry_ns, self.allowance_ns
        stalled, stalls = self.stalled, self.stalls
        for time, count in zip(times, repeat(1) if counts is None else counts, strict=False):
            if time > dry:
                stalls += time > due and not stalled
                stalled = time > due and count == 1
                dry = time
            else:
                stalled = False
            dry += count * pace
            due += count * pace
        self.dry_ns, self.stalled, self.stalls = dry, stalled, stalls

    def _count_misses(self, due: int, times: Sequence[int], counts: Sequence[int] | None) -> int:
        tbt = self._slo.fluidity.tbt_ns
        # Without the first token's spare time the deadlines start from it, as after a miss.
        drop_at = 0 if not self.count and self._slo.fluidity.ttft_credit == "drop" else -1
        for index, (time, count) in enumerate(zip(times, repeat(1) if counts is None else counts, strict=False)):
            if time > due:
                self.late += 1
                self.missed += 1 + (time - due) // tbt
                due = time
            elif index == drop_at:
                due = time
            due += count * tbt
        return due

    def _breaks_deadline(self, times: Sequence[int], counts: Sequence[int] | None, following: int) -> bool:
        deadline = self._slo.deadline
        if deadline.policy == "ttft_tpot":
            return False
        first_due = self.commit_ns + deadline.first_ns
        if deadline.policy == "dslo":
            due = first_due + self.count * following
            before = range(len(times)) if counts is None else accumulate(counts, initial=0)
            return times[-1] > due and any(
                time > due + number * following for time, number in zip(times, before, strict=False)
            )
        if not self.count and times[0] > first_due:
            return True
        previous = self.last_ns if self.count else times[0]
        if times[-1] - previous <= following:
            return False
        return any(after - before > following for before, after in pairwise((previous, *times)))
