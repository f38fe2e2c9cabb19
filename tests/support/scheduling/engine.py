"""An engine in miniature that records its requests as the vLLM plugin does, and knows its own iterations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from otel_llm.scheduling.profiles.recorded_steps import Recorded, Sample


@dataclass
class Request:
    arrival_ns: int
    input_tokens: int
    output_tokens: int
    done: int = 0
    queued_ns: int | None = None
    scheduled_ns: int = 0
    times_ns: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Run:
    """The requests as recorded, and the iterations as they were."""

    recorded: list[Recorded]
    samples: list[Sample]


def run_engine(
    asked: Sequence[tuple[int, int, int]],
    iteration_ns: Callable[[int, int, int, int], int],
    max_batched_tokens: int,
    max_batch: int = 64,
    jitter: Random | None = None,
    overhead_ns: int = 0,
) -> Run:
    """Run requests of (arrival ns, input, output), first come, first served, with chunked prefill.

    `jitter` shifts all times of a request by up to 50 us, as its anchor to the wall clock does; `overhead_ns` is from
    the commit until the request is visible to the engine, which looks for it between two iterations.
    """
    waiting = [Request(*one) for one in sorted(asked)]
    every = list(waiting)
    running: list[Request] = []
    samples: list[Sample] = []
    sizes: list[int] = []
    now_ns = 0
    while waiting or running:
        if not running:
            now_ns = max(now_ns, waiting[0].arrival_ns + overhead_ns)
        for one in waiting:
            if one.queued_ns is None and one.arrival_ns + overhead_ns <= now_ns:
                one.queued_ns = now_ns
        decodes = [one for one in running if one.times_ns]
        kv = sum(one.input_tokens + len(one.times_ns) for one in decodes)
        budget = max_batched_tokens - len(decodes)
        chunks: list[tuple[int, int]] = []
        complete: list[Request] = []
        queue = [one for one in running if not one.times_ns]
        while budget > 0 and (queue or waiting):
            if queue:
                one = queue.pop(0)
            elif waiting[0].queued_ns is not None and len(running) < max_batch:
                one = waiting.pop(0)
                one.scheduled_ns = now_ns
                running.append(one)
            else:
                break
            part = min(budget, one.input_tokens - one.done)
            chunks.append((part, one.done))
            one.done += part
            budget -= part
            if one.done == one.input_tokens:
                complete.append(one)
        chunk = sum(part for part, _ in chunks)
        prior = sum(part * done for part, done in chunks) // chunk if chunk else 0
        length_ns = iteration_ns(len(decodes), kv, chunk, prior)
        now_ns += length_ns
        samples.append(Sample(len(decodes), kv, chunk, prior, length_ns))
        sizes.append(len(decodes) + len(complete))
        for one in decodes + complete:
            one.times_ns.append(now_ns)
            one.steps.append(len(samples) - 1)
            if len(one.times_ns) == one.output_tokens:
                running.remove(one)
    return Run([_recorded(one, sizes, jitter, overhead_ns) for one in every], samples)


def _recorded(request: Request, sizes: Sequence[int], jitter: Random | None, overhead_ns: int) -> Recorded:
    shift_ns = 10**15 + (0 if jitter is None else jitter.randrange(-50_000, 50_000))
    own = [size for size in sizes[request.steps[0] : request.steps[-1] + 1] if size]
    first_step = sum(size > 0 for size in sizes[: request.steps[0]])
    return Recorded(
        commit_ns=request.arrival_ns + shift_ns,
        end_ns=request.times_ns[-1] + shift_ns,
        input_tokens=request.input_tokens,
        times_ns=[at_ns + shift_ns for at_ns in request.times_ns],
        first_step=first_step,
        batch_mean=round(sum(own) / len(own), 2),
        queue_s=(request.scheduled_ns - (request.queued_ns or 0)) / 1e9,
        prefill_s=(request.times_ns[0] - request.scheduled_ns) / 1e9,
    )
