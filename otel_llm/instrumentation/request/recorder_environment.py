"""What a recording is told of its request, and what it needs of the process it runs in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opentelemetry.sdk.resources import Resource
    from opentelemetry.trace import TracerProvider

    from otel_llm.export.records import AttributeValue, Record
    from otel_llm.instrumentation.core.recording import Recording
    from otel_llm.instrumentation.core.tally import Tally
    from otel_llm.instrumentation.request.genai_metrics import Metrics


@dataclass(frozen=True, slots=True)
class Request:
    """What is known of a request when it is committed.

    `commit_ns` is monotonic; `offset_ns` added to a monotonic time makes unix ns, the one anchor that the request
    keeps. `ours` are attributes under `otel_llm.` and `gen_ai` all others, both for segment 0 and the request span;
    `span_only` those for the request span alone. `says_complete`: the server declares each choice complete, so a body
    that ends before it did not end as the server meant it. `server`: measured where it is served, not where it is read;
    `gpus`: GPUs of this machine may serve it, and say how busy they were.
    `stack`: who saw the request, by its name in `setup.STACKS` where it has one.
    """

    name: str
    commit_ns: int
    offset_ns: int
    choices: int = 1
    ours: Mapping[str, AttributeValue] = field(default_factory=dict)
    gen_ai: Mapping[str, AttributeValue] = field(default_factory=dict)
    span_only: Mapping[str, AttributeValue] = field(default_factory=dict)
    says_complete: bool = False
    server: bool = False
    gpus: bool = True
    stack: str = "other"


class Host(Protocol):
    """The process, as recordings see it; `runtime.Runtime` in an application."""

    @property
    def clock_ns(self) -> Callable[[], int]:
        """The monotonic clock, ns."""

    @property
    def sampling(self) -> str:
        """Which streams are sent: always, or as their parent is sampled."""

    @property
    def dropped(self) -> int:
        """How many segments were dropped so far."""

    @property
    def metrics(self) -> Metrics | None:
        """Where histograms get their values, None where there are none."""

    @property
    def tally(self) -> Tally:
        """Counts of streams, for the doctor."""

    def getrandbits(self, bits: int, /) -> int:
        """Return a random number for an id."""

    def named(self, attributes: Mapping[str, AttributeValue]) -> dict[str, AttributeValue]:
        """Return GenAI attributes in the names that the application chose."""

    def provider(self) -> TracerProvider:
        """Return the application's TracerProvider."""

    def resource(self) -> Resource:
        """Return who sends."""

    def send(self, records: Sequence[Record], *, urgent: bool = False) -> None:
        """Queue records, before their turn where `urgent`."""

    def watch(self, recording: Recording) -> None:
        """Cut the recording from now on."""

    def urge(self, recording: Recording) -> None:
        """Cut the recording at once."""

    def warn(self, bug: BaseException) -> None:
        """Say, once, that we failed."""
