"""What a recording needs of the process it runs in, and what that process needs of a recording."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opentelemetry.sdk.resources import Resource
    from opentelemetry.trace import TracerProvider

    from otel_llm.export.records import AttributeValue, Record
    from otel_llm.instrumentation.core.genai_metrics import Metrics
    from otel_llm.instrumentation.core.tally import Tally


class Flushable(Protocol):
    """A recording, as what cuts it sees it; `recording.Recording` in an application."""

    @property
    def done(self) -> bool:
        """Whether it ended, or was given up."""

    @property
    def due_ns(self) -> int | None:
        """When it must say that it is silent (monotonic ns), None where it need not."""

    def tick(self, now_ns: int, *, urgent: bool = False, settle: bool = False, leaving: bool = False) -> None:
        """Cut what arrived until `now_ns` (monotonic), or end a stream that was left or collected."""

    def detach(self) -> None:
        """Stop recording without a word."""

    def give_up(self) -> None:
        """Stop recording; the request span ends here."""


class RecorderEnvironment(Protocol):
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

    def watch(self, recording: Flushable) -> None:
        """Cut the recording from now on."""

    def urge(self, recording: Flushable) -> None:
        """Cut the recording at once."""

    def warn(self, bug: BaseException) -> None:
        """Say, once, that we failed."""
