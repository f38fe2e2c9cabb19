"""Continuous batching with the fitted step times: when the tokens of many requests come from one engine. All in ns.

What vLLM's scheduler does if the cache holds all who run: in each step every running reply gets a token, and what
is left of the step's tokens goes to prompts, in order of arrival; a prompt may need several steps (chunked prefills).
`prompts-first` is how vLLM went about it before that, and what the paper calls CP off: prompts go first, whole, in
steps of their own in which no request decodes.

Left out: the time of HTTP and of the client, other programs on the machine, preemption, prefix caches.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from load_requests import Request
    from step_model import StepModel

Policy = Literal["chunked", "prompts-first"]


class _Running:
    """A request that the engine has begun: what is left of its prompt, and its tokens."""

    __slots__ = ("number", "output", "prompt", "rest", "times_ns")

    def __init__(self, number: int, request: Request) -> None:
        self.number = number
        self.prompt = self.rest = request.prompt
        self.output = request.output
        self.times_ns: list[int] = []


def serve(
    requests: Sequence[Request], model: StepModel, most_running: int, step_tokens: int, policy: Policy = "chunked"
) -> list[list[int]]:
    """Run requests, in order of arrival, through one engine; return when the tokens of each came.

    `most_running`: requests at once; `step_tokens`: tokens that one step computes at most (no prompt is longer).
    """
    found: list[list[int]] = [[] for _ in requests]
    waiting: deque[_Running] = deque()
    running: list[_Running] = []
    now_ns = following = 0
    while following < len(requests) or waiting or running:
        while following < len(requests) and requests[following].at_ns <= now_ns:
            waiting.append(_Running(following, requests[following]))
            following += 1
        if not waiting and not running:
            now_ns = requests[following].at_ns
            continue
        if policy == "chunked":
            decoding = [one for one in running if not one.rest]
            taken = _chunks(running, waiting, most_running, step_tokens - len(decoding))
        else:
            taken = _whole(running, waiting, most_running, step_tokens)
            decoding = [] if taken else list(running)
        prefill = sum(tokens for _, tokens in taken)
        now_ns += model.ns(len(decoding), prefill, sum(one.prompt + len(one.times_ns) for one in decoding))
        for one, tokens in taken:
            one.rest -= tokens
            if not one.rest:
                one.times_ns.append(now_ns)
        for one in decoding:
            one.times_ns.append(now_ns)
        for one in running:
            if len(one.times_ns) == one.output:
                found[one.number] = one.times_ns
        running = [one for one in running if len(one.times_ns) < one.output]
    return found


def _chunks(running: list[_Running], waiting: deque[_Running], most: int, tokens: int) -> list[tuple[_Running, int]]:
    """Give the tokens that are left of a step to prompts: those begun, then those that wait; these now run."""
    taken: list[tuple[_Running, int]] = []
    for one in running:
        if one.rest and tokens:
            taken.append((one, min(one.rest, tokens)))
            tokens -= taken[-1][1]
    while waiting and len(running) < most and tokens:
        one = waiting.popleft()
        running.append(one)
        taken.append((one, min(one.rest, tokens)))
        tokens -= taken[-1][1]
    return taken


def _whole(running: list[_Running], waiting: deque[_Running], most: int, tokens: int) -> list[tuple[_Running, int]]:
    """Take in whole prompts, as many as a step holds."""
    taken: list[tuple[_Running, int]] = []
    while waiting and len(running) < most and waiting[0].rest <= tokens:
        one = waiting.popleft()
        running.append(one)
        taken.append((one, one.rest))
        tokens -= one.rest
    return taken
