"""The incremental form: one stream's tokens in any partition, judged so far at any instant, O(1) a token."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, NamedTuple

from otel_llm.slo.classes import ABORTED, CONTENT, KINDS, OUTCOMES, Curve
from otel_llm.slo.live.gaps import gap_ranks, sorted_gaps, sorted_gaps_of
from otel_llm.slo.live.inflight import InFlight, Line, Lines
from otel_llm.slo.live.running import OneRow, Running, advance, dry_ns, idle_ns, ones, read_through_ns, start
from otel_llm.slo.request import benefit, met_given
from otel_llm.slo.token_events import TokenEvents, tokens_of
from otel_llm.slo.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_llm.slo.classes import SloClass
    from otel_llm.slo.live.running import Rows


class EventArrays(NamedTuple):
    """The times of events, and how many tokens each has; None for one each."""

    times_ns: array[int]
    counts: array[int] | None


class Stream:
    """The judgement of one stream in flight.

    All instants, in and out, are ns on one axis (64 bits, signed). A batch in order costs O(1) a token, mostly less;
    one with a token earlier than the last applied costs a replay of the whole stream.
    """

    __slots__ = (
        "_counts", "_every", "_gaps", "_joint_tokens", "_joint_until", "_kinds", "_read", "_read_counts", "_rows",
        "_slot", "commit_ns", "input_tokens", "skewed", "slo",
    )  # fmt: skip

    def __init__(
        self, slo: SloClass, commit_ns: int, input_tokens: int | None = None, rows: Rows | None = None, slot: int = 0
    ) -> None:
        self.slo = slo
        self.commit_ns = commit_ns
        self.input_tokens = input_tokens
        self.skewed = 0
        """Tokens recorded before the commit, which count as at the commit."""
        self._joint_tokens = self._joint_until = 0
        self._every = array("q")
        self._gaps: Sequence[int] | None = None
        self._kinds: bytearray | None = None  # None while all is content
        self._counts: array[int] | None = None  # None while each event is one token
        self._read = self._every if CONTENT in slo.reads else array("q")
        self._read_counts: array[int] | None = None  # of those read, if these are not all
        self._rows: Rows = OneRow() if rows is None else rows
        self._slot = slot
        start(self._rows, slot, slo, commit_ns, input_tokens)

    @property
    def joint_tokens(self) -> int:
        """Return the number of tokens after the first one of an event: the gap before each is 0."""
        counts = self._counts
        if counts is not None and self._joint_until < (events := len(counts)):  # else all are counted
            self._joint_tokens += sum(counts[self._joint_until :]) - (events - self._joint_until)
            self._joint_until = events
        return self._joint_tokens

    @property
    def last_ns(self) -> int:
        """Return the last token's arrival, of any kind; the commit before the first."""
        return self._every[-1] if self._every else self.commit_ns

    @property
    def tokens(self) -> int:
        """Return the number of tokens, of any kind."""
        return len(self._every) + self.joint_tokens

    @property
    def times_ns(self) -> Sequence[int]:
        """Return the arrivals of all token events, sorted, none before the commit; the caller must not change them."""
        return self._every

    @property
    def kinds(self) -> bytes | None:
        """Return the kind codes of all events, in the order of `times_ns`; None while all is content."""
        return None if self._kinds is None else bytes(self._kinds)

    @property
    def counts(self) -> Sequence[int] | None:
        """Return the tokens of all events, in the order of `times_ns`; None while each is one; not to be changed."""
        return self._counts

    @property
    def events(self) -> TokenEvents:
        """Return all events; the caller must not change them."""
        return TokenEvents(self._every, self.kinds, self._counts)

    @property
    def running(self) -> Running:
        """Return the running judgement."""
        return self._rows.running_of(self._slot)

    @property
    def open_arrays(self) -> EventArrays | None:
        """Return the arrays of all events if all of them are content and read, else None.

        An owner that keeps the running judgement elsewhere may append to them, and to one without counts only events of
        one token. Any other change may put others in their place.
        """
        plain = self._kinds is None and self._read is self._every
        return EventArrays(self._every, self._counts) if plain else None

    @property
    def gaps_ns(self) -> Sequence[int]:
        """Return the gaps between neighboring events, sorted; a list of few, an array of many.

        The gaps between neighboring tokens are these, and a 0 for each of `joint_tokens`.
        """
        if self._gaps is None or len(self._gaps) + 1 < len(self._every):
            self._gaps = sorted_gaps(self._every)
        return self._gaps

    def append(self, times: array[int], kind: int, counts: array[int] | None) -> None:
        """Append sorted events of one kind, none before the last, without judging them; `counts`: None for one each."""
        is_read = kind in self.slo.reads
        self._every.extend(times)
        self._note(bytes((kind,)) * len(times), counts, all_read=is_read)
        if self._read is not self._every and is_read:
            self._note_read(times, counts)

    @property
    def read_ns(self) -> Sequence[int]:
        """Return the sorted arrivals of the events that are read; the caller must not change them."""
        return self._read

    @property
    def read_counts(self) -> Sequence[int] | None:
        """Return the tokens of these events; None while each is one; not to be changed."""
        return self._counts if self._read is self._every else self._read_counts

    def extend(
        self, times_ns: Sequence[int], kinds: Sequence[int] | None = None, counts: Sequence[int] | None = None
    ) -> None:
        """Apply token events, in any order; `kinds` and `counts` as in `TokenEvents`.

        Raises ValueError for kinds or counts of another length, unknown kinds and counts below 1, and OverflowError for
        instants beyond 64 bits; the stream is then unchanged.
        """
        _check(kinds, counts, len(times_ns))
        if not times_ns:
            return
        times = sorted(times_ns)
        plain = self._kinds is None and (kinds is None or not any(kinds))
        if not plain or times[0] < self.last_ns or (counts is not None and times != list(times_ns)):
            self._extend_events(times_ns, kinds, counts)
            return
        before, numbers = len(self._every), None if counts is None else array("q", counts)
        self._every.fromlist(times)
        self._note_counts(before, len(times), numbers)
        if self._read is self._every:
            self._advance(times, numbers)

    def know_input_tokens(self, input_tokens: int) -> bool:
        """Set the prompt's length; return whether that moves deadlines, since the class has a first-token curve.

        The fluidity so far is then judged anew.
        """
        changed, self.input_tokens = self.input_tokens != input_tokens, input_tokens
        if not changed or not isinstance(self.slo.fluidity.ttft, Curve):
            return False
        start(self._rows, self._slot, self.slo, self.commit_ns, input_tokens)
        if self._read:
            self._advance(self._read, self.read_counts)
        return True

    def at(self, x_ns: int) -> InFlight:
        """Return the facts at an instant, assuming no token since the last applied (an earlier x counts as that)."""
        run, last = self.running, self.last_ns
        x = max(x_ns, last)
        count = run.count
        deadlines, misses = run.deadlines_and_misses(x)
        reading_ns = run.last_ns - run.first_ns
        return InFlight(
            tokens=self.tokens,
            tokens_read=count,
            age_ns=x - self.commit_ns,
            ttft_ns=self._every[0] - self.commit_ns if self._every else None,
            gap_ns=x - last,
            idle_ns=idle_ns(run, x),
            idle_decode_ns=run.idle_decode_ns(x) or 0,
            runway_ns=dry_ns(run) - x,
            rate_tokens_per_second=(count - 1) / (reading_ns / 1e9) if reading_ns else None,
            deadlines=deadlines,
            deadline_misses=misses,
            fluidity_index=(deadlines - misses) / deadlines if deadlines and misses is not None else None,
        )

    def lines(self) -> Lines:
        """Return the facts that are linear from the last token until the next."""
        run, last = self.running, self.last_ns
        decode = Line(0, 0, self.commit_ns)
        if run.count:
            zero_ns = read_through_ns(run)
            decode = Line(run.dry_ns - zero_ns, 1, zero_ns)
        return Lines(
            age=Line(None, 1, self.commit_ns),
            gap=Line(None, 1, last),
            idle=Line(idle_ns(run, self.commit_ns), 1, run.allowance_ns),
            idle_decode=decode,
            runway=Line(None, -1, dry_ns(run)),
        )

    def finish(self, end_ns: int, outcome: str) -> Verdict:
        """Return the verdict as if the stream had ended so; changes nothing, so that any prefix can be judged."""
        if outcome not in OUTCOMES:
            raise ValueError(f"outcome {outcome!r} is none of {', '.join(OUTCOMES)}")
        every, run = self._every, self.running
        count = run.count
        end = max(end_ns, self.last_ns)
        e2e_ns = end - self.commit_ns
        # Only an end other than completion leaves the reader waiting for the next token.
        waited_to = None if outcome == "completed" else end
        x = run.last_ns if waited_to is None else waited_to
        judged = waited_to is not None or count > 0
        idle = idle_ns(run, x)
        deadlines, misses = run.deadlines_and_misses(waited_to) if judged else (None, None)
        aborted = self.slo.benefit.abort_penalty if outcome in ABORTED else 0.0
        first_due = self.slo.fluidity.first_deadline_ns(self.input_tokens)
        tbt_p50_ns, tbt_p99_ns, tbt_max_ns = gap_ranks(self.gaps_ns, self.joint_tokens)
        stalls = run.stalls + (waited_to is not None and run.waiting(waited_to) and not run.stalled)
        return Verdict(
            outcome=outcome,
            tokens=self.tokens,
            tokens_read=count,
            skewed=self.skewed,
            end_ns=e2e_ns,
            e2e_ns=None if outcome == "lost" else e2e_ns,
            ttft_ns=every[0] - self.commit_ns if every else None,
            ttfo_ns=run.first_ns - self.commit_ns if count else None,
            span_ns=every[-1] - every[0] if every else None,
            tbt_p50_ns=tbt_p50_ns,
            tbt_p99_ns=tbt_p99_ns,
            tbt_max_ns=tbt_max_ns,
            judged=judged,
            idle_ns=idle if judged else None,
            idle_decode_ns=run.idle_decode_ns(x),
            stalls=stalls if judged else None,
            deadlines=deadlines,
            deadline_misses=misses,
            line_misses=run.line_misses(waited_to, first_due) if judged else None,
            met=met_given(outcome, passed=run.deadline_passed(waited_to, self.slo)) if judged else None,
            abort_penalty=aborted,
            benefit=benefit(count, idle, aborted, self.slo) if judged else None,
        )

    def _advance(self, times: Sequence[int], counts: Sequence[int] | None) -> None:
        """Apply sorted events that are read, at least one, none before the last applied one."""
        events = len(times)
        tokens = tokens_of(times, counts)
        advance(self._rows.cells, self._slot, times, ones(events) if counts is None else counts, 0, events, tokens)

    def _extend_events(
        self, times_ns: Sequence[int], kinds: Sequence[int] | None, counts: Sequence[int] | None
    ) -> None:
        of = bytes(len(times_ns)) if kinds is None else kinds
        events = sorted(zip(times_ns, of, _ones(len(times_ns)) if counts is None else counts, strict=True))
        if events[0][0] < self.last_ns:
            self._insert(events)
            return
        times, codes, numbers = zip(*events, strict=True)
        many = None if counts is None else array("q", numbers)
        read = [event for event in events if event[1] in self.slo.reads]
        self._every.extend(array("q", times))
        self._note(bytes(codes), many, all_read=len(read) == len(events))
        if not read:
            return
        read_times, _, read_numbers = zip(*read, strict=True)
        own = None if many is None else array("q", read_numbers)
        if self._read is not self._every:
            self._note_read(array("q", read_times), own)
        self._advance(read_times, own)

    def _note(self, kinds: bytes, counts: array[int] | None, *, all_read: bool) -> None:
        """Note the kinds and counts of the last events of `_every`; `all_read`: whether all of them are read."""
        before = len(self._every) - len(kinds)
        if self._read is self._every and not all_read:
            self._read, self._read_counts = self._every[:before], self._counts and self._counts[:before]
        if self._kinds is None and any(kinds):
            self._kinds = bytearray(before)
        if self._kinds is not None:
            self._kinds += kinds
        self._note_counts(before, len(kinds), counts)

    def _note_counts(self, before: int, events: int, counts: Sequence[int] | None) -> None:
        """Note the counts of the last `events` events of `_every`, after the `before` first ones."""
        if counts is not None or self._counts is not None:
            self._counts = self._counts or _ones(before)
            self._counts.extend(_ones(events) if counts is None else counts)

    def _note_read(self, times: array[int], counts: array[int] | None) -> None:
        """Note read events, if these are not all."""
        before = len(self._read)
        self._read.extend(times)
        if counts is not None or self._read_counts is not None:
            self._read_counts = self._read_counts or _ones(before)
            self._read_counts.extend(_ones(len(times)) if counts is None else counts)

    def _insert(self, events: list[tuple[int, int, int]]) -> None:
        """Insert sorted events, some of them before applied ones or before the commit."""
        array("q", [time for time, _, _ in events])  # beyond 64 bits: an error before anything changes
        last = self.last_ns
        self.skewed += sum(count for time, _, count in events if time < self.commit_ns)
        placed = [(max(time, self.commit_ns), kind, count) for time, kind, count in events]
        if any(time < last for time, _, _ in placed):
            known = bytes(len(self._every)) if self._kinds is None else self._kinds
            numbers = _ones(len(self._every)) if self._counts is None else self._counts
            placed += zip(self._every, known, numbers, strict=True)
            self._every = array("q")
            self._kinds = self._counts = self._read_counts = None
            self._joint_tokens = self._joint_until = 0
            self._read = self._every if CONTENT in self.slo.reads else array("q")
            start(self._rows, self._slot, self.slo, self.commit_ns, self.input_tokens)
        times, kinds, counts = zip(*placed, strict=True)
        self.extend(times, kinds, None if max(counts) == 1 else counts)


def sort_gaps(streams: Sequence[Stream]) -> None:
    """Sort the gaps of several streams in one pass, before they are read one by one."""
    for stream, gaps_ns in zip(streams, sorted_gaps_of([stream._every for stream in streams]), strict=True):
        stream._gaps = gaps_ns


def _ones(count: int) -> array[int]:
    return array("q", (1,)) * count


def _check(kinds: Sequence[int] | None, counts: Sequence[int] | None, events: int) -> None:
    if kinds is not None:
        if len(kinds) != events:
            raise ValueError(f"{len(kinds)} kinds for {events} tokens")
        if events and not 0 <= min(kinds) <= max(kinds) < len(KINDS):
            raise ValueError(f"kind codes are 0 to {len(KINDS) - 1}")
    if counts is not None and (len(counts) != events or min(counts, default=1) < 1):
        raise ValueError(f"expected {events} counts of 1 or more, one for each token event")
