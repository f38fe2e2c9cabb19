"""The messages between the load client and its workers: pickled, with their length before them.

Both ends are of one version and of one parent; nothing else can write to the socket.
"""

from __future__ import annotations

import pickle
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from otel_llm.bench.client.request_sender import Address
    from otel_llm.bench.client.target import RequestOptions, Target
    from otel_llm.bench.plan.prompts import PromptSpec
    from otel_llm.instrumentation.segments.choices import Counted

    Ints = NDArray[np.int64]

_LENGTH: Final = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Configure:
    """What a worker needs for all of its runs."""

    target: Target
    address: Address
    options: RequestOptions
    spec: PromptSpec


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A worker's share of a plan, (R,) int64 each.

    `numbers`: of its requests; `at_ns`: monotonic ns, None for a closed loop of `concurrency`, whose requests are
    `first`, `first + step` ... and have the lengths of the rows in turn, until `until_ns` or until `most` are sent.
    """

    start_ns: int
    input_tokens: Ints
    output_tokens: Ints
    numbers: Ints | None = None
    at_ns: Ints | None = None
    concurrency: int = 0
    first: int = 0
    step: int = 1
    until_ns: int | None = None
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """Send no request that is intended at `at_ns` or later (monotonic ns)."""

    at_ns: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """End what is in flight, with an outcome and the kind of its error."""

    outcome: str
    error: str


class Sent(NamedTuple):
    """A request was sent."""

    number: int
    intended_ns: int
    sent_ns: int
    input_tokens: int
    output_tokens: int


class Tokens(NamedTuple):
    """Tokens of a request were read."""

    number: int
    items: list[Counted]


class Ended(NamedTuple):
    """A request has ended. `output_tokens`, `reasoning_tokens`: the server's own counts of the whole reply."""

    number: int
    end_ns: int
    outcome: str
    error: str | None
    basis: str
    prompt_tokens: int | None
    output_tokens: int | None
    reasoning_tokens: int | None


Event = Sent | Tokens | Ended


class Report(NamedTuple):
    """What a worker has seen since its last report.

    Every event before `until_ns` has been reported, with this one. `cpu_ns`: processor time since the process began;
    `late_ns`: how much later than due the report was made. `all_sent`: no request will be sent; `finished`: and all
    have ended.
    """

    until_ns: int
    made_ns: int
    cpu_ns: int
    late_ns: int
    all_sent: bool
    finished: bool
    events: list[Event]


def framed(message: object) -> bytes:
    """Return a message as it goes over the socket."""
    raw = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(raw)) + raw


class Unframer:
    """The messages in a stream of bytes."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """Return the messages that end in `data`."""
        held = self._held
        held += data
        messages, at = [], 0
        while len(held) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(held, at)
            end = at + _LENGTH.size + length
            if len(held) < end:
                break
            messages.append(pickle.loads(held[at + _LENGTH.size : end]))  # noqa: S301  our own process wrote it
            at = end
        del held[:at]
        return messages
