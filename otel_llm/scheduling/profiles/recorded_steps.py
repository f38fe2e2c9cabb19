"""Rebuild the iterations of an engine from the token times and lengths of its requests.

An engine's plugin numbers the iterations that give tokens, and records the first of each request. A request has a token
in each of the iterations that follow, so that the members of every iteration are known. Its decodes are the requests
that had a token before, its prompts those whose first token it is. Chunks follow from the engine's budget: a prompt
that did not fit took all that was left of the iterations before.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

SAME_NS: Final = 200_000
"""Times of two requests are compared so loosely: each keeps the anchor of its clock, and a later one may be better."""
_MEAN_TOLERANCE: Final = 0.02
"""The recorded mean batch has two decimals."""


class Recorded(NamedTuple):
    """A request in the engine, in ns and tokens; `times_ns` sorted, one a token."""

    commit_ns: int
    end_ns: int
    input_tokens: int | None
    times_ns: Sequence[int]
    first_step: int | None = None
    """The number of the iteration that gave its first token; None if its tokens are not one an iteration."""
    batch_mean: float | None = None
    """The mean number of requests with a token in its iterations, as the plugin counted them."""
    queue_s: float | None = None
    prefill_s: float | None = None
    """From its being scheduled to its first token."""


class Sample(NamedTuple):
    """One iteration: its work, and how long it lasted."""

    decodes: int
    kv_tokens: int
    chunk: int
    prior: int
    length_ns: int


@dataclass(slots=True)
class Step:
    """An iteration under reconstruction; `members`: each request with the number of tokens it had before."""

    first_ns: int
    members: dict[int, int] = field(default_factory=dict)
    times_ns: dict[int, int] = field(default_factory=dict)
    length_ns: int | None = None
    """None if the engine may have been idle before it."""
    chunks: list[tuple[int, int]] = field(default_factory=list)
    """The tokens of each prompt, and those before them."""
    doubtful: bool = False


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What a recording says of an engine's iterations."""

    samples: tuple[Sample, ...]
    steps: int
    """Iterations with a token."""
    idle_before: int
    """Those of unknown length: nothing shows when they began."""
    doubtful: int
    """Those with a request that is not known well, or with one that was not recorded."""
    overheads_ns: tuple[int, ...]
    """Bounds of the time from a commit to the engine's queue, as many from below as from above."""


def rebuild(requests: Sequence[Recorded], max_batched_tokens: int) -> Rebuilt:
    """Rebuild the iterations of one engine from all of its requests."""
    steps = _steps(requests)
    _measure_lengths(requests, steps, max_batched_tokens)
    _doubt(requests, steps)
    _assign_chunks(requests, steps, max_batched_tokens)
    samples = [_sample(requests, step) for step in steps if step.length_ns is not None and not step.doubtful]
    return Rebuilt(
        samples=tuple(samples),
        steps=len(steps),
        idle_before=sum(step.length_ns is None and not step.doubtful for step in steps),
        doubtful=sum(step.doubtful for step in steps),
        overheads_ns=tuple(_overheads(requests, steps)),
    )


def _steps(requests: Sequence[Recorded]) -> list[Step]:
    """Return the iterations by number, those without a known request left out."""
    steps: dict[int, Step] = {}
    for number, request in enumerate(requests):
        if request.first_step is None:
            continue
        for before, at_ns in enumerate(request.times_ns):
            step = steps.setdefault(request.first_step + before, Step(at_ns))
            step.first_ns = min(step.first_ns, at_ns)
            step.members[number] = before
            step.times_ns[number] = at_ns
    return [steps[number] for number in sorted(steps)]


def _measure_lengths(requests: Sequence[Recorded], steps: Sequence[Step], max_batched_tokens: int) -> None:
    """Measure each iteration by the requests that had a token in the one before, on their own clocks.

    A prompt alone on an idle engine is measured by its time from being scheduled.
    """
    for index, step in enumerate(steps):
        previous = steps[index - 1] if index else None
        if previous is not None:
            common = step.times_ns.keys() & previous.times_ns.keys()
            if common:
                step.length_ns = round(median(step.times_ns[one] - previous.times_ns[one] for one in common))
                continue
        if len(step.members) == 1 and (alone := requests[next(iter(step.members))]).prefill_s:
            length_ns = round(alone.prefill_s * 1e9)
            free = previous is None or previous.first_ns < step.first_ns - length_ns
            known = alone.input_tokens is not None and alone.input_tokens <= max_batched_tokens
            if free and known and not next(iter(step.members.values())):
                step.length_ns = length_ns


def _assign_chunks(requests: Sequence[Recorded], steps: Sequence[Step], max_batched_tokens: int) -> None:
    """Give each prompt the iterations that it ran in, first come, first served."""
    ends = [step.first_ns for step in steps]
    left = [max(0, max_batched_tokens - sum(before > 0 for before in step.members.values())) for step in steps]
    for index, step in enumerate(steps):
        prompts = [number for number, before in step.members.items() if not before]
        for number in sorted(prompts, key=lambda one: requests[one].commit_ns):
            request = requests[number]
            if request.input_tokens is None:
                continue
            scheduled_ns = None
            if request.prefill_s is not None:
                scheduled_ns = step.times_ns[number] - round(request.prefill_s * 1e9)
            visible_ns = request.commit_ns - SAME_NS
            begins = _possible_begins(request.input_tokens, visible_ns, scheduled_ns, steps, left, index)
            first = _begin(begins, scheduled_ns, steps)
            if first is None:
                for one in steps[bisect_left(ends, request.commit_ns) : index + 1]:
                    one.doubtful = True
                continue
            done = 0
            for at in range(first, index + 1):
                part = request.input_tokens - done if at == index else left[at]
                if part:
                    steps[at].chunks.append((part, done))
                    left[at] -= part
                    done += part


def _possible_begins(
    tokens: int, visible_ns: int, scheduled_ns: int | None, steps: Sequence[Step], left: Sequence[int], position: int
) -> list[int]:
    """Return the iterations in which a prompt that is complete in `position` may have begun; none if nothing is
    known.

    From there on it takes all that is left, so that it is complete in `position` and no earlier.
    """
    found = [position] if tokens <= left[position] else []
    at, before = position, 0
    while at and visible_ns <= steps[at - 1].first_ns:
        at -= 1
        later = scheduled_ns is not None and scheduled_ns >= steps[at].first_ns
        if steps[at].doubtful or not _follows(steps[at + 1]):
            # What was left there, or whether it ran right before the next, is not known.
            took_part = steps[at].doubtful or 0 < left[at] < tokens - before
            return [] if took_part and not later else found
        if at and _follows(steps[at]) and visible_ns > steps[at - 1].first_ns:
            return found
        before += left[at]
        if before >= tokens:
            return found
        if left[at] and tokens <= before + left[position]:
            found.append(at)
    return found


def _begin(begins: Sequence[int], scheduled_ns: int | None, steps: Sequence[Step]) -> int | None:
    """Return the one possible begin, or the last that began by when the request was scheduled; None if not known."""
    if len(begins) < 2 or scheduled_ns is None:
        return begins[0] if len(begins) == 1 else None

    def begun(at: int) -> bool:
        length_ns = steps[at].length_ns
        return length_ns is None or steps[at].first_ns - length_ns <= scheduled_ns + SAME_NS

    return max(filter(begun, begins), default=None)


def _follows(step: Step) -> bool:
    """Tell whether the engine is known to have run the iteration right behind the one before it."""
    return step.length_ns is not None and any(step.members.values())


def _doubt(requests: Sequence[Recorded], steps: Sequence[Step]) -> None:
    """Mark the iterations of requests that are not known well, or that ran beside requests without a recording."""
    ends = [step.first_ns for step in steps]
    indexes_of: dict[int, list[int]] = defaultdict(list)
    for index, step in enumerate(steps):
        for number in step.members:
            indexes_of[number].append(index)
    for number, request in enumerate(requests):
        indexes = indexes_of[number]
        if indexes and request.input_tokens is not None:
            mine = steps[indexes[0] : indexes[-1] + 1]
            mean = sum(len(step.members) for step in mine) / len(mine)
            batch_mean = 1.0 if request.batch_mean is None else request.batch_mean
            if abs(mean - batch_mean) <= _MEAN_TOLERANCE:
                continue
            first, last = indexes[0], indexes[-1] + 1
        else:
            first, last = bisect_left(ends, request.commit_ns), bisect_right(ends, request.end_ns) + 1
        for step in steps[first:last]:
            step.doubtful = True


def _sample(requests: Sequence[Recorded], step: Step) -> Sample:
    decodes = {number: before for number, before in step.members.items() if before}
    chunk = sum(part for part, _ in step.chunks)
    return Sample(
        decodes=len(decodes),
        kv_tokens=sum((requests[number].input_tokens or 0) + before for number, before in decodes.items()),
        chunk=chunk,
        prior=sum(part * done for part, done in step.chunks) // chunk if chunk else 0,
        length_ns=step.length_ns or 0,
    )


def _overheads(requests: Sequence[Recorded], steps: Sequence[Step]) -> list[int]:
    """Return the bounds, from below and from above, of the time from each commit to the engine's queue, ns.

    The engine looks for requests between two iterations. One that it finds behind an iteration came while that ran; one
    that it finds idle came at once, and both bounds are the same.
    """
    ends = [step.first_ns for step in steps]
    found = []
    for request in requests:
        if request.first_step is None or request.queue_s is None or request.prefill_s is None:
            continue
        queued_ns = request.times_ns[0] - round((request.queue_s + request.prefill_s) * 1e9)
        position = bisect_right(ends, queued_ns + SAME_NS) - 1
        came_ns: int | None = queued_ns
        if 0 <= position < len(steps) - 1 and _follows(steps[position + 1]):
            length_ns = steps[position].length_ns
            came_ns = None if length_ns is None else ends[position] - length_ns
        if came_ns is not None:
            found += [max(0, came_ns - request.commit_ns), max(0, queued_ns - request.commit_ns)]
    return found
