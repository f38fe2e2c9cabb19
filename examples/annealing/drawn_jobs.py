"""Jobs of the paper's mix (section 5.1): half code, half chat, each with its targets, in random order.

Neither data set is at hand. Chat has the lengths of ShareGPT by the percentiles that PolyServe's Table 1 prints; code
has lognormal lengths whose mean request takes the 3 s that the paper measured. Requests of 2,000 tokens and more are
left out, as in the paper.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final

import numpy as np

from otel_llm.scheduling import Job
from otel_llm.scheduling.output_lengths import OutputLengths, vary
from otel_llm.scheduling.workload.lengths import PercentileLengths

if TYPE_CHECKING:
    from collections.abc import Sequence

LONGEST: Final = 2000
"""Tokens of input and output together; the paper's latency model holds below."""
CHAT_INPUT: Final = PercentileLengths(((25, 16), (50, 36), (75, 158), (90, 818), (95, 1613), (99, 3421)))
CHAT_OUTPUT: Final = PercentileLengths(((25, 131), (50, 280), (75, 445), (90, 682), (95, 846), (99, 1001)))
CODE_INPUT: Final = (3.9, 0.5)
CODE_OUTPUT: Final = (5.07, 0.5)
"""Mean and deviation of the logarithm: means of 56 and 180 tokens."""
SEEN: Final = 1000
"""Requests of each kind that the length predictor has seen before."""


def draw_jobs(count: int, seed: str) -> list[Job]:
    """Return jobs in random order, every other one code; a function of the arguments."""
    draw = np.random.default_rng([ord(letter) for letter in seed])
    jobs = [_job(("chat", "code")[index % 2], draw) for index in range(count)]
    return [jobs[place] for place in draw.permutation(count)]


def kind_of(job: Job) -> str:
    """Return `code` or `chat`."""
    return "chat" if job.e2e is None else "code"


def predicted(jobs: Sequence[Job], lengths: str, seed: str) -> list[Job]:
    """Return the jobs with the output lengths that a scheduler believes: `gaussian`, or an error as `0.05`."""
    draw = Random(seed)
    if lengths != "gaussian":
        return [_with_output(job, vary(job.output, float(lengths), draw)) for job in jobs]
    return [_with_output(job, min(_PREDICTOR.draw(kind_of(job), draw), LONGEST)) for job in jobs]


def _with_output(job: Job, output: int) -> Job:
    return Job(job.input, output, e2e=job.e2e, ttft=job.ttft, tpot=job.tpot)


def _job(kind: str, draw: np.random.Generator) -> Job:
    while True:
        if kind == "chat":
            prompt, reply = (int(one.draw(1, draw)[0]) for one in (CHAT_INPUT, CHAT_OUTPUT))
        else:
            prompt, reply = (1 + int(draw.lognormal(*one)) for one in (CODE_INPUT, CODE_OUTPUT))
        if prompt + reply < LONGEST:
            break
    return Job(prompt, reply, ttft=10.0, tpot=0.05) if kind == "chat" else Job(prompt, reply, e2e=30.0)


def _seen() -> OutputLengths:
    lengths = OutputLengths()
    for job in draw_jobs(2 * SEEN, "seen"):
        lengths.observe(kind_of(job), job.output)
    return lengths


_PREDICTOR: Final = _seen()
