"""When the tokens of many requests come from one engine: a model of batch latency with contention. All in ns.

It is no simulator of a product. It has the two effects by which requests slow each other down, and nothing that was
measured on the rules that are compared:

- a decode step gives every running request one token and takes longer the more requests run and the longer their
  contexts are (`STEP_MS`);
- an engine that also takes in prompts stops decoding while it does (`PREFILL_MS`), as vLLM does without chunked
  prefills: waiting prompts go first.

Left out: the host's jitter, preemption (a request is taken in only when its whole context fits), prefix caches.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

MS: Final = 1_000_000
S: Final = 1_000_000_000

# Llama-3.1-8B, bf16, vLLM, one A100: aiconfigurator 0.12.0 (Apache-2.0), `static_gen`, ms a decode step. The paper's
# own machine and one of its two models. Of batch 1 the tool's ends are known; between them it is linear here.
STEP_CONTEXTS: Final = (128, 512, 1024, 2048, 4096, 8192)
STEP_MS: Final = {
    1: (11.6, 11.643, 11.7, 11.814, 12.043, 12.5),
    32: (12.5, 13.9, 15.6, 19.1, 25.1, 37.8),
    128: (16.0, 20.2, 24.8, 34.5, 56.4, 102.0),
    256: (25.6, 33.3, 43.7, 63.0, 106.0, 196.0),
}
# The same tool, model and machine: ms to take in one prompt of so many tokens; a prompt of one token is a decode step.
PREFILL_MS: Final = ((1, 11.6), (256, 23.0), (1024, 65.0), (4096, 259.0), (8192, 557.0), (16384, 1315.0))
MOST_RUNNING: Final = 256
"""vLLM's `max_num_seqs`, in the paper's version (0.6.3) and the last column of the table."""
MOST_PREFILL_TOKENS: Final = 8192
"""Prompt tokens that one step takes in, unless a single prompt has more: the model's table ends there."""
CACHE_TOKENS: Final = 412_000
"""80 GB x 0.9 (vLLM's share) - 16 GB weights - 2 GB activations, at 131,072 bytes a token (32 layers, 8 KV heads of
128, two of two bytes)."""

Engine = Literal["mixed", "decode"]
"""`mixed` takes in prompts between decode steps; `decode` gets requests whose prompt another machine has taken in."""


class Request(NamedTuple):
    """One request: when it arrives, the tokens of its prompt and of its reply (at least one)."""

    at_ns: int
    prompt: int
    output: int


@dataclass(frozen=True, slots=True)
class Served:
    """When tokens came: the ends of decode steps, and of each request the first token and its steps [begin, end)."""

    requests: Sequence[Request]
    steps_ns: list[int]
    first_ns: list[int]
    begin: list[int]

    def tokens_ns(self, number: int) -> list[int]:
        """Return when the tokens of one request came, on the axis of the arrivals."""
        begin = self.begin[number]
        return [self.first_ns[number], *self.steps_ns[begin : begin + self.requests[number].output - 1]]


@cache
def _row_ns(batch: int) -> tuple[int, ...]:
    """Return ns a step at the contexts of the table, for one size of batch."""
    sizes = list(STEP_MS)
    upper = sizes[max(1, bisect_left(sizes, batch))]
    lower = sizes[sizes.index(upper) - 1]
    return tuple(
        round(MS * (low + (high - low) * (batch - lower) / (upper - lower)))
        for low, high in zip(STEP_MS[lower], STEP_MS[upper], strict=True)
    )


def step_ns(batch: int, cached: int) -> int:
    """Return how long a decode step takes for `batch` requests of `cached` tokens in all.

    Linear between the points of the table, and beyond its contexts as between the last two; raises ValueError for a
    batch that it does not have.
    """
    if not 1 <= batch <= MOST_RUNNING:
        raise ValueError(f"a batch of {batch}: the table has 1 to {MOST_RUNNING}")
    row, at = _row_ns(batch), STEP_CONTEXTS
    right = min(max(1, bisect_left(at, cached / batch)), len(at) - 1)
    left = right - 1
    # In whole ns, so that the same comes out everywhere.
    return row[left] + (row[right] - row[left]) * (cached - at[left] * batch) // ((at[right] - at[left]) * batch)


@cache
def prefill_ns(prompt: int) -> int:
    """Return how long it takes to take in one prompt, linear between the points of the table and beyond the last."""
    at = [tokens for tokens, _ in PREFILL_MS]
    right = min(max(1, bisect_left(at, prompt)), len(at) - 1)
    (low, low_ms), (high, high_ms) = PREFILL_MS[right - 1], PREFILL_MS[right]
    return round(MS * (low_ms + (high_ms - low_ms) * (prompt - low) / (high - low)))


def serve(requests: Sequence[Request], engine: Engine) -> Served:
    """Run requests, in order of arrival, through one engine until the last has got its last token."""
    count = len(requests)
    mixed = engine == "mixed"
    ready_ns = [one.at_ns if mixed else one.at_ns + prefill_ns(one.prompt) for one in requests]
    order = sorted(range(count), key=lambda number: (ready_ns[number], number))
    served = Served(requests, [], [0] * count if mixed else list(ready_ns), [0] * count)
    steps_ns, ending = served.steps_ns, dict[int, list[int]]()
    waiting: deque[int] = deque()
    now_ns = following = running = cached = reserved = 0
    while following < count or waiting or running:
        while following < count and ready_ns[order[following]] <= now_ns:
            waiting.append(order[following])
            following += 1
        if not waiting and not running:
            now_ns = ready_ns[order[following]]
            continue
        taken: list[int] = []
        prompts = 0
        while waiting:
            number = waiting[0]
            one = requests[number]
            full = running >= MOST_RUNNING or (running and reserved + one.prompt + one.output > CACHE_TOKENS)
            if full or (mixed and taken and prompts + one.prompt > MOST_PREFILL_TOKENS):
                break
            waiting.popleft()
            if not mixed and one.output == 1:
                continue  # its only token came with the prompt
            taken.append(number)
            prompts += one.prompt
            served.begin[number] = len(steps_ns)
            ending.setdefault(len(steps_ns) + one.output - 1, []).append(number)
            running += 1
            cached += one.prompt + 1
            reserved += one.prompt + one.output
        if mixed and taken:
            now_ns += sum(prefill_ns(requests[number].prompt) for number in taken)
            for number in taken:
                served.first_ns[number] = now_ns
        elif running:
            now_ns += step_ns(running, cached)
            steps_ns.append(now_ns)
            cached += running
        for number in ending.pop(len(steps_ns), ()):
            one = requests[number]
            running -= 1
            cached -= one.prompt + one.output
            reserved -= one.prompt + one.output
    return served
