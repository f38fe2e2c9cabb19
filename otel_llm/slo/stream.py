"""The incremental form: one stream's tokens in any partition, judged so far at any instant, O(1) a token."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from otel_llm.slo.classes import ABORTED, CONTENT, KINDS, OUTCOMES, Curve
from otel_llm.slo.live.gaps import gap_ranks, sorted_gaps, sorted_gaps_of
from otel_llm.slo.live.inflight import InFlight, Line, Lines
from otel_llm.slo.live.running import Running
from otel_llm.slo.request import benefit, met_given
from otel_llm.slo.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_llm.slo.classes import SloClass


class Stream:
    """The judgement of one stream in flight.

    All instants, in and out, are ns on one axis (64 bits, signed). A batch in order costs O(1) a token, mostly less;
    one with a token earlier than the last applied costs a replay of the whole stream.
    """

    __slots__ = ("_every", "_gaps", "_kinds", "_read", "_run", "commit_ns", "input_tokens", "resorted", "skewed", "slo")

    def __init__(self, slo: SloClass, commit_ns: int, input_tokens: int | None = None) -> None:
        self.slo = slo
        self.commit_ns = commit_ns
        self.input_tokens = input_tokens
        self.resorted = 0
        """Tokens earlier than one already applied."""
        self.skewed = 0
        """Tokens recorded before the commit, which count as at the commit."""
        self._every = array("q")
        self._gaps: Sequence[int] | None = None
        self._kinds: bytearray | None = None  # None while all is content
        self._read = self._every if CONTENT in slo.reads else array("q")
        self._run = Running(slo, commit_ns, input_tokens)

    @property
    def last_ns(self) -> int:
        """Return the last token's arrival, of any kind; the commit before the first."""
        return self._every[-1] if self._every else self.commit_ns

    @property
    def times_ns(self) -> Sequence[int]:
        """Return the arrivals of all tokens, sorted, none before the commit; the caller must not change them."""
        return self._every

    @property
    def kinds(self) -> bytes | None:
        """Return the kind codes of all tokens, in the order of `times_ns`; None while all is content."""
        return None if self._kinds is None else bytes(self._kinds)

    @property
    def running(self) -> Running:
        """Return the running judgement, for an owner that keeps it elsewhere between two batches."""
        return self._run

    @property
    def plain_times(self) -> array[int] | None:
        """Return the array of all tokens if all of them are content and read, else None.

        An owner that keeps the running judgement elsewhere may append to it.
        """
        return self._every if self._kinds is None and self._read is self._every else None

    @property
    def gaps_ns(self) -> Sequence[int]:
        """Return the gaps between neighbouring tokens, sorted; a list of few, an array of many."""
        if self._gaps is None or len(self._gaps) + 1 < len(self._every):
            self._gaps = sorted_gaps(self._every)
        return self._gaps

    def append(self, times: bytes, kind: int) -> None:
        """Append sorted tokens of one kind, none before the last, as 64-bit integers, without judging them."""
        before = len(self._every)
        self._every.frombytes(times)
        if kind != CONTENT and self._kinds is None:
            self._kinds = bytearray(before)
            if self._read is self._every:
                self._read = self._every[:before]
        if self._kinds is not None:
            self._kinds += bytes((kind,)) * (len(self._every) - before)
        if self._read is not self._every and kind in self.slo.reads:
            self._read.frombytes(times)

    @property
    def read_ns(self) -> Sequence[int]:
        """Return the sorted arrivals of the read tokens; the caller must not change them."""
        return self._read

    def extend(self, times_ns: Sequence[int], kinds: Sequence[int] | None = None) -> None:
        """Apply tokens, in any order; `kinds`: a code a token, None where all is content.

        Raises ValueError for kinds of another length or unknown ones and OverflowError for instants beyond 64 bits; the
        stream is then unchanged.
        """
        if kinds is not None:
            _check(kinds, len(times_ns))
        if not times_ns:
            return
        if self._kinds is not None or (kinds is not None and any(kinds)):
            self._extend_kinds(times_ns, bytes(len(times_ns)) if kinds is None else bytes(kinds))
            return
        times = sorted(times_ns)
        if times[0] < self.last_ns:
            self._insert(times, bytes(len(times)))
            return
        self._every.fromlist(times)
        if self._read is self._every:
            self._run.apply(times)

    def know_input_tokens(self, input_tokens: int) -> None:
        """Set the prompt's length, on which a first-token curve depends; the fluidity so far is judged anew."""
        changed, self.input_tokens = self.input_tokens != input_tokens, input_tokens
        if changed and isinstance(self.slo.fluidity.ttft, Curve):
            self._run = Running(self.slo, self.commit_ns, input_tokens)
            if self._read:
                self._run.apply(self._read.tolist())

    def at(self, x_ns: int) -> InFlight:
        """Return the facts at an instant, assuming no token since the last applied (an earlier x counts as that)."""
        run, last = self._run, self.last_ns
        x = max(x_ns, last)
        count, misses = run.count, run.misses(x)
        deadlines = None if misses is None else count - run.late + misses
        reading_ns = run.last_ns - run.first_ns
        return InFlight(
            tokens=len(self._every),
            tokens_read=count,
            age_ns=x - self.commit_ns,
            ttft_ns=self._every[0] - self.commit_ns if self._every else None,
            gap_ns=x - last,
            idle_ns=run.idle_ns(x),
            idle_decode_ns=run.idle_decode_ns(x) or 0,
            runway_ns=(run.dry_ns if count else run.allowance_ns) - x,
            rate_tokens_per_second=(count - 1) / (reading_ns / 1e9) if reading_ns else None,
            deadlines=deadlines,
            deadline_misses=misses,
            fluidity_index=(deadlines - misses) / deadlines if deadlines and misses is not None else None,
        )

    def lines(self) -> Lines:
        """Return the facts that are linear from the last token until the next."""
        run, last = self._run, self.last_ns
        decode = Line(0, 0, self.commit_ns)
        if run.count:
            read_through = run.first_ns + run.count * self.slo.pace_ns
            decode = Line(run.dry_ns - read_through, 1, read_through)
        return Lines(
            age=Line(None, 1, self.commit_ns),
            gap=Line(None, 1, last),
            idle=Line(run.idle_ns(self.commit_ns), 1, run.allowance_ns),
            idle_decode=decode,
            runway=Line(None, -1, run.dry_ns if run.count else run.allowance_ns),
        )

    def finish(self, end_ns: int, outcome: str) -> Verdict:
        """Return the verdict as if the stream had ended so; changes nothing, so that any prefix can be judged."""
        if outcome not in OUTCOMES:
            raise ValueError(f"outcome {outcome!r} is none of {', '.join(OUTCOMES)}")
        every, run = self._every, self._run
        count = run.count
        end = max(end_ns, self.last_ns)
        e2e_ns = end - self.commit_ns
        # Only an end other than completion leaves the reader waiting for the next token.
        waited_to = None if outcome == "completed" else end
        x = run.last_ns if waited_to is None else waited_to
        judged = waited_to is not None or count > 0
        idle = run.idle_ns(x)
        misses = run.misses(waited_to) if judged else None
        aborted = self.slo.benefit.abort_penalty if outcome in ABORTED else 0.0
        tbt_p50_ns, tbt_p99_ns, tbt_max_ns = gap_ranks(self.gaps_ns)
        stalls = run.stalls + (waited_to is not None and run.waiting(waited_to) and not run.stalled)
        return Verdict(
            outcome=outcome,
            tokens=len(every),
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
            deadlines=None if misses is None else count - run.late + misses,
            deadline_misses=misses,
            line_misses=run.line_misses(waited_to) if judged else None,
            met=met_given(outcome, passed=run.deadline_passed(waited_to)) if judged else None,
            abort_penalty=aborted,
            benefit=benefit(count, idle, aborted, self.slo) if judged else None,
        )

    def _extend_kinds(self, times_ns: Sequence[int], kinds: bytes) -> None:
        pairs = sorted(zip(times_ns, kinds, strict=True))
        times = [time for time, _ in pairs]
        codes = bytes(kind for _, kind in pairs)
        if times[0] < self.last_ns:
            self._insert(times, codes)
            return
        before = len(self._every)
        self._every.fromlist(times)
        if self._kinds is None:
            self._kinds = bytearray(before)
            if self._read is self._every:
                self._read = self._every[:before]
        self._kinds += codes
        read = [time for time, kind in pairs if kind in self.slo.reads]
        if read:
            self._read.fromlist(read)
            self._run.apply(read)

    def _insert(self, times: list[int], kinds: bytes) -> None:
        """Insert sorted tokens, some of them before applied ones or before the commit."""
        every = array("q", (max(time, self.commit_ns) for time in times)).tolist()
        last = self.last_ns
        self.skewed += sum(time < self.commit_ns for time in times)
        earlier = sum(time < last for time in every)
        self.resorted += earlier
        if earlier:
            known = bytes(len(self._every)) if self._kinds is None else bytes(self._kinds)
            pairs = sorted(zip([*self._every, *every], known + kinds, strict=True))
            every, kinds = [time for time, _ in pairs], bytes(kind for _, kind in pairs)
            self._every = array("q")
            self._kinds = None
            self._read = self._every if CONTENT in self.slo.reads else array("q")
            self._run = Running(self.slo, self.commit_ns, self.input_tokens)
        self.extend(every, kinds)


def sort_gaps(streams: Sequence[Stream]) -> None:
    """Sort the gaps of several streams in one pass, before they are read one by one."""
    for stream, gaps_ns in zip(streams, sorted_gaps_of([stream._every for stream in streams]), strict=True):
        stream._gaps = gaps_ns


def _check(kinds: Sequence[int], count: int) -> None:
    if len(kinds) != count:
        raise ValueError(f"{len(kinds)} kinds for {count} tokens")
    if count and not 0 <= min(kinds) <= max(kinds) < len(KINDS):
        raise ValueError(f"kind codes are 0 to {len(KINDS) - 1}")
