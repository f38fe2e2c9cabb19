"""The prefill tokens of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_llm.scheduling.iteration_profile import IterationProfile
    from otel_llm.scheduling.polyserve.due_times import DueTimes
    from otel_llm.scheduling.polyserve.replica import Prefill, Replica
    from otel_llm.scheduling.polyserve.settings import PolyServeSettings


class BatchBudget:
    """The chunk of a batch by the deadlines of its decodes and of the prompts that it completes.

    Beside decodes `tpot` (section 4.5) lets an iteration last the TPOT of the tier. `slack` (ours) lets it last
    `slack_share` of the time until the next token of a decode is due. In both, other prompts only fill a batch as far
    as the prompts that complete in it stay in time.
    """

    def __init__(self, settings: PolyServeSettings, profile: IterationProfile) -> None:
        self._settings = settings
        self._profile = profile

    def of(self, replica: Replica, due: DueTimes, tpot_ns: int, now_ns: int) -> int:
        """Return the prefill tokens of the batch that a replica forms now.

        `due`: the due times of its decodes; `tpot_ns`: the TPOT of its tier.
        """
        settings = self._settings
        decodes = replica.decodes
        most = self._profile.max_batched_tokens - decodes
        if settings.chunking == "engine" or most < 1:
            return most
        prefills = list(replica.prefills())
        if not decodes and settings.dynamic_chunking and prefills and most < prefills[0].remaining < 2 * most:
            return prefills[0].remaining
        chunk, _ = mix(prefills, most)
        if not chunk:
            return most
        if decodes:
            allowed_ns = self._allowed_ns(replica, due, tpot_ns, now_ns)
            if allowed_ns is not None:
                chunk = largest_chunk(self._profile, replica, prefills, 0, chunk, allowed_ns)
        return self._in_time(replica, prefills, chunk, now_ns)

    def _allowed_ns(self, replica: Replica, due: DueTimes, tpot_ns: int, now_ns: int) -> int | None:
        """Return how long the iteration may last for its decodes; None if none of them is in time any more."""
        profile, share = self._profile, self._settings.slack_share
        bare_ns = profile.iteration_ns(replica.decodes, replica.decode_context) + profile.step_overhead_ns
        due_ns = due.earliest_ns(replica.iterations, now_ns + bare_ns)
        if due_ns is None:
            return None
        if self._settings.chunking == "tpot":
            return tpot_ns
        return (due_ns - now_ns) * share.numerator // share.denominator

    def _in_time(self, replica: Replica, prefills: Sequence[Prefill], chunk: int, now_ns: int) -> int:
        """Return the chunk, cut if it would make a prompt late that would complete in time without the others."""
        total = 0
        end_ns: int | None = None
        for request, remaining, _ in prefills:
            total += remaining
            if total >= chunk:
                break
            if request.late:
                continue
            if end_ns is None:
                end_ns = now_ns + length_ns(self._profile, replica, prefills, chunk)
            if end_ns > request.due_ns:
                allowed_ns = request.due_ns - now_ns
                if length_ns(self._profile, replica, prefills, total) <= allowed_ns:
                    return largest_chunk(self._profile, replica, prefills, total, chunk, allowed_ns)
        return chunk


def mix(prefills: Sequence[Prefill], most: int) -> tuple[int, int]:
    """Return the tokens that a batch with a budget of `most` has of these prompts, and their prior ones on average."""
    total = weighted = 0
    for _, remaining, prior in prefills:
        take = min(remaining, most - total)
        total += take
        weighted += take * prior
        if total == most:
            break
    return total, weighted // total if total else 0


def length_ns(profile: IterationProfile, replica: Replica, prefills: Sequence[Prefill], chunk: int) -> int:
    """Return the time of an iteration with a chunk of these prompts, overhead included."""
    total, prior = mix(prefills, chunk)
    return profile.iteration_ns(replica.decodes, replica.decode_context, total, prior) + profile.step_overhead_ns


def largest_chunk(
    profile: IterationProfile, replica: Replica, prefills: Sequence[Prefill], least: int, most: int, allowed_ns: int
) -> int:
    """Return the largest chunk, from `least` to `most`, whose iteration lasts at most `allowed_ns`; or `least`.

    The length is taken to rise with the chunk. If it is a line, the answer takes four look-ups; else the interval
    is halved if the line does not narrow it.
    """
    high, high_ns = most, length_ns(profile, replica, prefills, most)
    if high_ns <= allowed_ns:
        return most
    low, low_ns = least, length_ns(profile, replica, prefills, least)
    if low_ns > allowed_ns:
        return least
    by_line = True
    while high - low > 1:
        width = high - low
        middle = low + ((allowed_ns - low_ns) * width // (high_ns - low_ns) if by_line else width // 2)
        middle = min(max(middle, low + 1), high - 1)
        middle_ns = length_ns(profile, replica, prefills, middle)
        if middle_ns <= allowed_ns:
            low, low_ns = middle, middle_ns
        else:
            high, high_ns = middle, middle_ns
        by_line = 2 * (high - low) <= width or not by_line
    return low
