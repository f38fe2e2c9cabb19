"""What a step of the real engine takes: which loads are run for it, and how the times come out of the recording."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from load_clients import SHORT
from step_model import Sample

import otel_llm.audit

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy.typing as npt
    from load_clients import Clients


class Phase(NamedTuple):
    """A load of its own: `running` replies to prompts of `prompt` tokens at once; then `newcomers`, one by one."""

    running: int
    prompt: int
    output: int
    newcomers: tuple[int, ...] = ()

    @property
    def requests(self) -> int:
        """Return how many requests that is."""
        return self.running + len(self.newcomers)


NEWCOMERS: Final = (32, 64, 128, 256, 400)
ROUND: Final = (
    *(Phase(running, SHORT, 24) for running in (1, 2, 4, 8, 16, 24, 32, 48, 64)),
    *(Phase(running, prompt, 24) for running, prompt in ((8, 300), (16, 400), (32, 200), (64, 100))),
    *(Phase(running, SHORT, 64, NEWCOMERS) for running in (4, 16, 32)),
)
"""One round of the measurement. Between phases nothing runs, which separates them in the recording."""
WINDOW: Final = 8
"""Steps that are taken together if replies only decode: the jitter of the client between two tokens drops out."""


class Stream(NamedTuple):
    """One recorded reply: its commit, the tokens of its prompt, and when its tokens came."""

    commit_ns: int
    prompt: int
    times_ns: npt.NDArray[np.int64]


async def run_round(clients: Clients) -> None:
    """Run all phases of a round, one after the other."""
    for phase in ROUND:
        if phase.newcomers:
            await clients.newcomers(phase.running, phase.newcomers, phase.output)
        else:
            await clients.together(phase.running, phase.prompt, phase.output)


def read(file: Path) -> list[Stream]:
    """Return the replies of a recording in order of their commits.

    Raises:
        ValueError: one is not complete.
    """
    found: list[Stream] = []
    for batch in otel_llm.audit.load_streams(file):
        for row in batch.select(["commit_ns", "input_tokens", "times_ns", "complete", "outcome"]).to_pylist():
            if not row["complete"] or row["outcome"] != "completed":
                raise ValueError(f"{file}: a reply is not complete ({row['outcome']})")
            found.append(Stream(row["commit_ns"], row["input_tokens"], np.array(row["times_ns"], np.int64)))
    return sorted(found, key=lambda one: one.commit_ns)


def samples(streams: Sequence[Stream], number: int) -> list[Sample]:
    """Return the measured steps of round `number`.

    Raises:
        ValueError: these are not the requests of a round.
    """
    found: list[Sample] = []
    rest = list(streams)
    for phase in ROUND:
        mine, rest = rest[: phase.requests], rest[phase.requests :]
        if len(mine) < phase.requests or (rest and max(one.times_ns[-1] for one in mine) > rest[0].commit_ns):
            raise ValueError(f"no round: there are no {phase.requests} requests by themselves for {phase}")
        found += _newcomers(mine, phase, number) if phase.newcomers else _decoding(mine, phase, number)
    return found


def _decoding(streams: Sequence[Stream], phase: Phase, number: int) -> list[Sample]:
    """Return the means of WINDOW steps each while all replies decode; of all replies the median."""
    begin_ns = max(one.times_ns[0] for one in streams)
    end_ns = min(one.times_ns[-1] for one in streams)
    inside = [one.times_ns[(one.times_ns >= begin_ns) & (one.times_ns <= end_ns)] for one in streams]
    steps = min(len(times) for times in inside) - 1
    found = []
    for first in range(steps - WINDOW + 1):
        step_ns = float(np.median([times[first + WINDOW] - times[first] for times in inside])) / WINDOW
        context = phase.running * (phase.prompt + phase.output - steps + first + WINDOW // 2)
        found.append(Sample(number, phase.running, 0, phase.prompt, context, round(step_ns / 1e6, 3)))
    return found


def _newcomers(streams: Sequence[Stream], phase: Phase, number: int) -> list[Sample]:
    """Return the steps that took a prompt in: in the other replies, the long gap when the newcomer's token comes.

    The tokens of one step come to their clients one after the other, so that the gap may be the one before or behind.
    """
    others = streams[: phase.running]
    found = []
    for one in streams[phase.running :]:
        gaps_ns, context = [], 0
        for other in others:
            nearest = int(np.abs(other.times_ns - one.times_ns[0]).argmin())
            around = range(max(1, nearest - 1), min(len(other.times_ns), nearest + 2))
            if len(around) == 3:
                gaps_ns.append(max(int(other.times_ns[end] - other.times_ns[end - 1]) for end in around))
                context += other.prompt + nearest
        if len(gaps_ns) == phase.running:  # else a reply was over before
            step_ms = round(float(np.median(gaps_ns)) / 1e6, 3)
            found.append(Sample(number, phase.running, one.prompt, phase.prompt, context, step_ms))
    return found
