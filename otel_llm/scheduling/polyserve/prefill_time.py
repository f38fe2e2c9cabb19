"""The prediction of when prompts are prefilled beside decodes that must stay in time.

A batch of n iterations over w ns of prefill lasts w + n b, b being an iteration without a chunk. Each iteration moves
the due times of the decodes by their TPOT, so it adds TPOT - b to the time that prefill may take. What the decodes have
beforehand is the credit: their slack, less the slack that remains if every iteration lasts a TPOT.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from otel_llm.scheduling.iteration_profile import IterationProfile
    from otel_llm.scheduling.polyserve.settings import PolyServeSettings

UNIT: Final = 1024
"""Iterations are counted in such parts, since several prompts may share one."""
HALVINGS: Final = 4
"""The steps of the search for a prompt's number of iterations if its cost is not linear."""
ENDLESS: Final = 1 << 62
"""The credit if no decode must be in time (ns)."""


class PrefillTime:
    """A prediction of one replica's prefills, one after another.

    `begin_ns`: the first chunk that is not in an iteration yet begins then; `work_ns`: the prefill since; `parts`: the
    iterations since, in 1 / `UNIT`; `decodes`, `kv`: the decodes then and their contexts, in tokens.

    Args:
        tpot_ns: the time that an iteration may last beside decodes; None: no decode must be in time.
        joins: a prompt decodes here when it is complete.
        slack_ns: the time from `begin_ns` until the next token of a decode is due, None if no decode has a due time.
    """

    __slots__ = (
        "_credit_ns",
        "_fill",
        "_joins",
        "_profile",
        "_settings",
        "_tpot_ns",
        "begin_ns",
        "decodes",
        "kv",
        "parts",
        "work_ns",
    )

    def __init__(
        self,
        profile: IterationProfile,
        settings: PolyServeSettings,
        begin_ns: int,
        decodes: int,
        kv: int,
        tpot_ns: int | None,
        slack_ns: int | None,
        *,
        joins: bool = True,
    ) -> None:
        self._profile = profile
        self._joins = joins
        self._fill = 0  # prefill tokens of the iteration that the next prompt shares
        self._settings = settings
        self._tpot_ns = tpot_ns
        self.begin_ns = begin_ns
        self.decodes = decodes
        self.kv = kv
        self.work_ns = 0
        self.parts = 0
        self._credit_ns = ENDLESS if slack_ns is None else self._credit_of(slack_ns)

    def add(self, remaining: int, prior: int, context: int) -> int | None:
        """Add a prompt with `remaining` of its `context` tokens; return when it is complete, None if never.

        It is a decode from then on, unless it leaves.
        """
        decodes, kv = self.decodes, self.kv
        bare_ns = self._profile.iteration_ns(decodes, kv)
        if remaining > 0:
            most = max(1, self._profile.max_batched_tokens - decodes)
            plan = self._plan(remaining, prior, most, bare_ns)
            if plan is None:
                return None
            parts, work_ns, bare_ns = plan
            chunk = min(remaining, most)
            self._fill = self._fill + chunk if parts < UNIT else chunk
            self.work_ns += work_ns
            self.parts += parts
            kv += decodes * (parts // UNIT)
            if self._credit_ns != ENDLESS:
                self._credit_ns += self._gain_ns(bare_ns) * parts // UNIT - work_ns
        if self._joins:
            self.decodes = decodes + 1
            self.kv = kv + context
        return self.begin_ns + self.work_ns + -(-self.parts // UNIT) * (bare_ns + self._profile.step_overhead_ns)

    def _plan(self, remaining: int, prior: int, most: int, bare_ns: int) -> tuple[int, int, int] | None:
        """Return the parts and the work of a prompt, and the iteration without a chunk; None if it never completes."""
        settings, decodes = self._settings, self.decodes
        chunk = min(remaining, most)
        work_ns = self._work_ns(bare_ns, chunk, remaining, prior)
        least = -(-remaining * UNIT // most)
        if settings.dynamic_chunking and not decodes and most < remaining < 2 * most:
            least = UNIT
        parts = self._parts(bare_ns, work_ns, least)
        if parts is not None and parts > UNIT:
            parts, work_ns = self._in_chunks(remaining, prior, bare_ns, least, parts)
        if parts is not None and settings.continuous_prediction and decodes:
            # At its end the KV has grown by a token for each decode and iteration.
            bare_ns = self._profile.iteration_ns(decodes, self.kv + decodes * (parts // UNIT))
            parts = self._parts(bare_ns, work_ns, least)
        return None if parts is None else (parts, work_ns, bare_ns)

    def _in_chunks(self, remaining: int, prior: int, bare_ns: int, least: int, parts: int) -> tuple[int | None, int]:
        """Return parts and work of a prompt that takes several iterations, given the parts by the work of one chunk."""

        def work_of(parts: int) -> int:
            return self._work_ns(bare_ns, max(1, remaining * UNIT // parts), remaining, prior)

        work_ns = work_of(parts)
        needed = self._parts(bare_ns, work_ns, least)
        if needed is None or needed > parts - UNIT:
            return needed, work_ns
        # Short chunks cost less, as when an iteration lasts a floor: fewer and longer ones are looked for between.
        low, high = needed, parts
        for _ in range(HALVINGS):
            middle = (low + high) // 2
            middle_ns = work_of(middle)
            needed = self._parts(bare_ns, middle_ns, least)
            if needed is not None and needed <= middle:
                high, work_ns = middle, middle_ns
            else:
                low = middle
        return high, work_ns

    def promise(self, slack_ns: int) -> None:
        """Note that the prompt that was added last has its next token due `slack_ns` after its first."""
        self._credit_ns = min(self._credit_ns, self._credit_of(slack_ns))

    def _credit_of(self, slack_ns: int) -> int:
        tpot_ns, settings = self._tpot_ns, self._settings
        if tpot_ns is None or settings.chunking == "engine":
            return ENDLESS
        if settings.chunking == "tpot":
            return 0
        share = settings.slack_share
        return slack_ns - tpot_ns * share.denominator // share.numerator

    def _gain_ns(self, bare_ns: int) -> int:
        """Return the time that an iteration without a chunk leaves of a TPOT."""
        return (self._tpot_ns or 0) - bare_ns - self._profile.step_overhead_ns

    def _parts(self, bare_ns: int, work_ns: int, least: int) -> int | None:
        """Return the iterations that the work needs, in 1 / `UNIT`; None if the decodes leave no time for it."""
        credit_ns = self._credit_ns
        share = self._settings.slack_share
        used, whole = share.numerator, share.denominator
        if work_ns <= (credit_ns * used // whole if credit_ns > 0 else credit_ns):
            return least
        gain_ns = self._gain_ns(bare_ns)
        if gain_ns <= 0:
            return None
        parts = -(-(work_ns - credit_ns) * UNIT // gain_ns)
        if credit_ns > 0:
            # Each iteration uses a share of what is left of the credit, so some of it is left in the end.
            iterations = max(2, -(-parts // UNIT))
            parts += credit_ns * (whole - used) ** iterations // whole**iterations * UNIT // gain_ns
            least = max(least, UNIT + 1)
        return max(least, parts)

    def _work_ns(self, bare_ns: int, chunk: int, remaining: int, prior: int) -> int:
        """Return the time that the prompt adds to the iterations, in chunks of this size."""
        fill = min(self._fill, self._profile.max_batched_tokens - self.decodes - chunk)
        middle = prior + (remaining - chunk) // 2
        iteration_ns = self._profile.iteration_ns
        if fill > 0:
            before_ns = iteration_ns(self.decodes, self.kv, fill)
            after_ns = iteration_ns(self.decodes, self.kv, fill + chunk, middle * chunk // (fill + chunk))
        else:
            before_ns, after_ns = bare_ns, iteration_ns(self.decodes, self.kv, chunk, middle)
        return (after_ns - before_ns) * remaining // chunk


def alone_ns(profile: IterationProfile, settings: PolyServeSettings, context: int) -> int:
    """Return the time of a prefill on an idle replica."""
    done_ns = PrefillTime(profile, settings, 0, 0, 0, None, None).add(context, 0, context)
    return done_ns or 0
