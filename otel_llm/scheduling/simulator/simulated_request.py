"""A simulated request: its lengths, its progress, and its token times as runs of iterations."""

from __future__ import annotations

from typing import NamedTuple


class Run(NamedTuple):
    """Consecutive iterations of an instance, each with a token of the request at its end.

    `instance`: its number; `first`: the first iteration, counted from 0 on that instance; `tokens`: their number.
    """

    instance: int
    first: int
    tokens: int


class SimulatedRequest:
    """A request of the simulator: `input` and `output` tokens are known to it, a policy decides whether to use them.

    `number` is the position by arrival; `tier` the position of its class; `due_ns`: its first token is due then, the
    arrival if nothing is promised; times are ns from the start of the run.
    While it has no instance or waits for or does its prefill, `context` are the tokens to prefill, `prefilled` those
    that are done or in the current iteration; `produced` are the tokens before the current run, `first` is the first
    iteration of the current run, `start` its start number on the instance. `ready`: its context came from a prefill
    instance. `late`: a policy serves it after all others, since its promise cannot be kept any more. `end_ns` is None
    until it is over; `dropped`: it fits no instance.
    """

    __slots__ = (
        "arrival_ns",
        "context",
        "dropped",
        "due_ns",
        "end_ns",
        "first",
        "input",
        "late",
        "number",
        "output",
        "preemptions",
        "prefilled",
        "produced",
        "ready",
        "runs",
        "start",
        "tier",
    )

    def __init__(
        self,
        number: int,
        arrival_ns: int,
        input: int,  # noqa: A002
        output: int,
        tier: int = 0,
        due_ns: int | None = None,
    ) -> None:
        if input < 1 or output < 1 or arrival_ns < 0:
            raise ValueError(
                f"request {number}: input {input}, output {output} and arrival {arrival_ns} ns must be "
                "at least 1, 1 and 0"
            )
        self.number = number
        self.arrival_ns = arrival_ns
        self.input = input
        self.output = output
        self.tier = tier
        self.due_ns = arrival_ns if due_ns is None else due_ns
        self.context = input
        self.prefilled = 0
        self.produced = 0
        self.first = 0
        self.start = 0
        self.ready = False
        self.late = False
        self.dropped = False
        self.preemptions = 0
        self.end_ns: int | None = None
        self.runs: list[Run] = []
