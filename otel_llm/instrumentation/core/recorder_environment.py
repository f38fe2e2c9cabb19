"""The interfaces between a recording and its process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opentelemetry.sdk.resources import Resource
    from opentelemetry.trace import TracerProvider

    from otel_llm.export.records import AttributeValue, Record
    from otel_llm.instrumentation.core.genai_metrics import Metrics
    from otel_llm.instrumentation.core.stats import Stats
    from otel_llm.instrumentation.segments.model_chunks import KnownModels


class Flushable(Protocol):
    """A recording as the flusher sees it; `recording.Recording` in an application."""

    @property
    def done(self) -> bool:
        """Whether it ended, or was given up."""

    @property
    def due_ns(self) -> int | None:
        """The instant at which it must send an empty segment (monotonic ns), None if it need not."""

    def tick(self, now_ns: int, *, urgent: bool = False, complete: bool = False, exiting: bool = False) -> None:
        """Cut the tokens until `now_ns` (monotonic), or end a stream that was left or collected."""

    def detach(self) -> None:
        """Stop recording without a last segment."""

    def give_up(self) -> None:
        """Stop recording; the request span ends here."""


class RecorderEnvironment(Protocol):
    """The process as recordings see it; `runtime.Runtime` in an application."""

    @property
    def clock_ns(self) -> Callable[[], int]:
        """The monotonic clock, ns."""

    @property
    def sampling(self) -> str:
        """Which streams are sent: all, or those whose parent is sampled."""

    @property
    def dropped(self) -> int:
        """The number of dropped segments so far."""

    @property
    def metrics(self) -> Metrics | None:
        """The histograms, None if there are none."""

    @property
    def models(self) -> KnownModels:
        """What this process has learned of the chunks of models."""

    @property
    def stats(self) -> Stats:
        """Counts of streams, for the doctor."""

    def getrandbits(self, bits: int, /) -> int:
        """Return a random number for an id."""

    def named(self, attributes: Mapping[str, AttributeValue]) -> dict[str, AttributeValue]:
        """Return GenAI attributes under the names that the application chose."""

    def provider(self) -> TracerProvider:
        """Return the application's TracerProvider."""

    def resource(self) -> Resource:
        """Return the sending process's resource."""

    def send(self, records: Sequence[Record], *, urgent: bool = False) -> None:
        """Queue records, at once if `urgent`."""

    def watch(self, recording: Flushable) -> None:
        """Cut the recording from now on."""

    def urge(self, recording: Flushable) -> None:
        """Cut the recording at once."""

    def warn(self, bug: BaseException) -> None:
        """Log our failure."""
