"""The recorder of this process: one flusher, one outbox, and the application's settings. The only global state."""

from __future__ import annotations

import atexit
import contextlib
import os
import random
import sys
import uuid
from typing import TYPE_CHECKING, Any, Final, Literal

from opentelemetry import trace

from otel_llm import semconv
from otel_llm.export import host_log, threads
from otel_llm.export.clock import monotonic_ns, monotonic_s
from otel_llm.export.delivery import SpanExporterDelivery
from otel_llm.export.endpoints import usable_settings
from otel_llm.export.host_log import HostLog, Shown
from otel_llm.export.outbox import CAPACITY, Outbox
from otel_llm.export.routing import outbox_for
from otel_llm.export.settings import exit_timeout_s
from otel_llm.export.undelivered import tell
from otel_llm.instrumentation.core.genai_metrics import Metrics
from otel_llm.instrumentation.core.renamed_attributes import NAMES, named
from otel_llm.instrumentation.core.stats import Stats
from otel_llm.instrumentation.process.flusher import Flusher
from otel_llm.instrumentation.process.graceful_stop import Stops
from otel_llm.instrumentation.process.unrecorded import Unrecorded
from otel_llm.instrumentation.process.wall_anchor import WallAnchor
from otel_llm.instrumentation.segments.model_chunks import KnownModels

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from opentelemetry.metrics import MeterProvider
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import TracerProvider

    from otel_llm.export.records import AttributeValue, Record
    from otel_llm.export.routing import RoutedOutbox
    from otel_llm.instrumentation.core.recorder_environment import Flushable
    from otel_llm.instrumentation.core.renamed_attributes import Names


def detected() -> Resource:
    """Return the shared resource of this process and its forks.

    It is detected once for all of them, since the SDK runs its detectors in a thread pool, which stands still in a
    worker that eventlet has patched. An instance id that the SDK made up is left out: each fork has its own.
    """
    from opentelemetry.sdk import resources

    resource = resources.Resource.create()
    made_up = getattr(resources, "ServiceInstanceIdResourceDetector", None)  # not in every version
    attributes = dict(resource.attributes)
    if made_up is not None:
        made = made_up().detect().attributes.get(semconv.SERVICE_INSTANCE_ID)
        if attributes.get(semconv.SERVICE_INSTANCE_ID) == made:
            attributes.pop(semconv.SERVICE_INSTANCE_ID, None)
    return resources.Resource(attributes, resource.schema_url)


Sampling = Literal["always", "parent"]
Measures = Literal["off", "requests", "chunks"]

SAMPLING: Final[tuple[Sampling, ...]] = ("always", "parent")
MEASURES: Final[tuple[Measures, ...]] = ("off", "requests", "chunks")


class Runtime:
    """The process environment of recordings, see `RecorderEnvironment`."""

    def __init__(
        self,
        exporter: SpanExporter | None = None,
        tracer_provider: TracerProvider | None = None,
        slo_class: str | None = None,
        sampling: Sampling = "always",
        names: Names = "1.41",
        queue_segments: int = CAPACITY,
        clock_ns: Callable[[], int] = monotonic_ns,
        *,
        meter_provider: MeterProvider | None = None,
        metrics: Measures = "requests",
        slo_classes: Collection[str] | None = None,
        propagate: bool = True,
    ) -> None:
        self.clock_ns = clock_ns
        self.anchor = WallAnchor()
        self.slo_class = slo_class
        self.sampling = sampling
        self.slo_classes = None if slo_classes is None else frozenset(slo_classes)
        self.propagate = propagate
        self.refused_classes = 0  # SLO classes of requests that are not known here
        self.refused_replies = 0  # replies of a server's recorded paths that were no streams
        self.metrics = None if metrics == "off" else Metrics(meter_provider, names, chunks=metrics == "chunks")
        self._names = names
        self.stats = Stats()
        self.models = KnownModels()
        self.unrecorded = Unrecorded(self.stats, clock_ns)
        self.outbox: Outbox | RoutedOutbox = (
            outbox_for(usable_settings(), queue_segments)
            if exporter is None
            else Outbox(SpanExporterDelivery(exporter), queue_segments, where=type(exporter).__name__)
        )
        self.flusher = Flusher(clock_ns, self._measure)
        # Not the random module's own generator, which an application may seed: ids would repeat in every process.
        # Asking the system each time costs up to 80 us and releases the interpreter's lock.
        self._random = random.Random()  # noqa: S311
        self.getrandbits = self._random.getrandbits
        self._tracer_provider = tracer_provider
        self._resource: tuple[object, Resource] | None = None
        self._detected: Resource | None = None
        self._instance_id = str(uuid.uuid4())
        self._leaves_after: tuple[object, ...] = (self, self)
        self._finalizer: Any = None
        self._stop_by_s: float | None = None  # the deadline of the stop that began since the newest stream
        self._told_lost = False  # whether that stop said what it lost
        self.exit_s = exit_timeout_s()
        self.log = HostLog(lambda: clock_ns() / 1e9)

    @property
    def dropped(self) -> int:
        """Return the number of dropped segments so far."""
        return self.outbox.dropped

    def named(self, attributes: Mapping[str, AttributeValue]) -> dict[str, AttributeValue]:
        """Return GenAI attributes under the names that the application chose."""
        return named(attributes, self._names)

    def provider(self) -> TracerProvider:
        """Return the application's TracerProvider, as it is now: it may be set later than ours."""
        return self._tracer_provider or trace.get_tracer_provider()

    def resource(self) -> Resource:
        """Return the application's resource, with a `service.instance.id` of the sender if it has none."""
        from opentelemetry.sdk.resources import Resource

        theirs = getattr(self.provider(), "resource", None)
        if self._resource is None or self._resource[0] is not theirs:
            if isinstance(theirs, Resource):
                resource = theirs
            else:
                resource = self._detected = self._detected or detected()
            if not resource.attributes.get(semconv.SERVICE_INSTANCE_ID):
                resource = resource.merge(Resource({semconv.SERVICE_INSTANCE_ID: self._instance_id}))
            self._resource = (theirs, resource)
        return self._resource[1]

    def send(self, records: Sequence[Record], *, urgent: bool = False) -> None:
        """Queue records, at once if `urgent`."""
        self.outbox.put(records, urgent=urgent)

    def watch(self, recording: Flushable) -> None:
        """Cut the recording from now on."""
        self._stop_by_s = None
        self._told_lost = False
        self._leave_before(self.provider(), None if self.metrics is None else self.metrics.provider())
        self.flusher.add(recording)

    def urge(self, recording: Flushable) -> None:
        """Cut the recording at once."""
        self.flusher.urge(recording)

    def warn(self, bug: BaseException) -> None:
        """Log our failure; the application's stream goes on as without us."""
        words = "otel_llm failed and records this stream no further; the stream itself is unharmed: %s"
        self.log.warning(words, bug)

    def _measure(self) -> None:
        if self.metrics is not None:
            try:
                self.metrics.step()
            except Exception as bug:  # noqa: BLE001
                self.warn(bug)

    def refuse_class(self) -> None:
        """Count a request with an unknown SLO class; warn once."""
        self.refused_classes += 1
        if self.refused_classes == 1:  # the name is not logged: it may be anything
            host_log.warning(
                "otel_llm: a request named an SLO class that is not among slo_classes; it gets the default"
            )

    def refuse_reply(self, where: str, content_type: str, remedy: str) -> None:
        """Count a server's answer without tokens at a recorded path; warn once."""
        self.refused_replies += 1
        if self.refused_replies == 1:
            sort = content_type or "no content type"
            host_log.warning("otel_llm: a reply of %s (%s) shows no tokens. %s", where, sort, Shown(remedy))

    def flush(self, timeout_s: float) -> bool:
        """Cut all streams and send what is queued; return whether all of it was settled in time."""
        until_s = monotonic_s() + timeout_s
        completed = self.flusher.complete(timeout_s)
        return self.outbox.flush(max(until_s - monotonic_s(), 0.0)) and completed

    def stop(self, timeout_s: float | None = None) -> bool:
        """Stop recording: send the recorded data within `timeout_s` or `exit_s`, forget the streams that go on."""
        until_s = monotonic_s() + (self.exit_s if timeout_s is None else timeout_s)
        self.flusher.complete(max(until_s - monotonic_s(), 0.0))
        self.flusher.stop(max(until_s - monotonic_s(), 0.0))
        self.unrecorded.complete()
        atexit.unregister(self.leave)
        self._cancel_finalizer()
        completed = self.outbox.close(max(until_s - monotonic_s(), 0.0))
        self._tell_lost()
        return completed

    def complete(self, *, exiting: bool = False, within_s: float | None = None) -> None:
        """Send the recorded data before a server stops, within `within_s` or `exit_s`; wait for no endpoint that fails.

        `exiting`: the process ends, and with it the open streams.
        """
        within_s = self.exit_s if within_s is None else within_s
        with contextlib.suppress(Exception):
            completed = self.flusher.complete(min(self.stop_time_left_s(), within_s), exiting=exiting)
            if self.outbox.flush(min(self.stop_time_left_s(), within_s), patient=False) and completed:
                self._stop_by_s = None  # nothing of this stop is left to be waited for
            elif exiting:
                self._tell_lost()

    def leave_in(self, seconds: float) -> None:
        """End in so many seconds the streams that are open then: the process is killed soon after.

        It takes no lock, so a signal handler may call it.
        """
        self.flusher.leave_at(self.clock_ns() + int(seconds * 1e9))

    def leave(self) -> None:
        """Send the recorded data, and end the open streams: the process ends."""
        with contextlib.suppress(Exception):
            self.flusher.complete(self.stop_time_left_s(), exiting=True)
            self.outbox.close(self.stop_time_left_s())
            self._tell_lost()

    def _tell_lost(self) -> None:
        self._told_lost = self._told_lost or tell(self.outbox.undelivered())

    def stop_time_left_s(self) -> float:
        """Return how long a stop may still wait: several handlers may hear of one, and share `exit_s`."""
        now_s = self.clock_ns() / 1e9
        if self._stop_by_s is None or now_s > self._stop_by_s + self.exit_s:  # none, or one of long ago
            self._stop_by_s = now_s + self.exit_s
        return max(self._stop_by_s - now_s, 0.0)

    def after_fork(self) -> None:
        """Start clean in a forked child, as a sender of its own."""
        self._instance_id = str(uuid.uuid4())
        self._resource = None
        self._leaves_after = (self, self)
        self._finalizer = None  # the parent's
        self._stop_by_s = None
        self._told_lost = False
        self.log = HostLog(self.log.clock_s)
        self._random.seed()
        self.stats = Stats()
        self.models = KnownModels()
        self.unrecorded = Unrecorded(self.stats, self.clock_ns)
        self.flusher.after_fork()
        if self.metrics is not None:
            self.metrics.after_fork()
        self.outbox.after_fork()

    def _leave_before(self, *providers: object) -> None:
        # Handlers run last in, first out: ours is registered after the providers', so that request spans that end with
        # the process are ended, and their values recorded, before they shut down.
        if all(ours is theirs for ours, theirs in zip(self._leaves_after, providers, strict=False)):
            return
        self._leaves_after = providers
        atexit.unregister(self.leave)
        atexit.register(self.leave)
        # A process forked by multiprocessing ends without running those handlers, but with its own.
        self._cancel_finalizer()
        if (util := sys.modules.get("multiprocessing.util")) is not None:
            self._finalizer = util.Finalize(None, self.leave, exitpriority=100)

    def _cancel_finalizer(self) -> None:
        finalizer, self._finalizer = self._finalizer, None
        if finalizer is not None:
            finalizer.cancel()


_lock = threads.lock()
_running: list[Runtime] = []
_users: Final[set[str]] = set()


def configured(
    exporter: SpanExporter | None = None,
    tracer_provider: TracerProvider | None = None,
    slo_class: str | None = None,
    sampling: Sampling = "always",
    semconv: Names = "1.41",
    queue_segments: int = CAPACITY,
    meter_provider: MeterProvider | None = None,
    metrics: Measures = "requests",
    slo_classes: Collection[str] | None = None,
    propagate: bool = True,
    **_: object,  # other settings of OpenTelemetry's instrumentors: a logger provider
) -> Runtime:
    """Return a runtime with these settings, ready to record.

    Raises ValueError for an unknown word or a value out of range.
    """
    if sampling not in SAMPLING:
        raise ValueError(f"sampling={sampling!r} is none of {', '.join(SAMPLING)}")
    if semconv not in NAMES:
        raise ValueError(f"semconv={semconv!r} is none of {', '.join(NAMES)}")
    if metrics not in MEASURES:
        raise ValueError(f"metrics={metrics!r} is none of {', '.join(MEASURES)}")
    if queue_segments < 1:
        raise ValueError(f"queue_segments={queue_segments!r}: the queue must hold at least one segment")
    if isinstance(slo_classes, str):
        raise ValueError(f"slo_classes={slo_classes!r} is one text, not the names of classes")  # noqa: TRY004
    if slo_class is not None and slo_classes is not None and slo_class not in slo_classes:
        raise ValueError(f"slo_class={slo_class!r} is none of slo_classes")
    runtime = Runtime(
        exporter,
        tracer_provider,
        slo_class,
        sampling,
        semconv,
        queue_segments,
        meter_provider=meter_provider,
        metrics=metrics,
        slo_classes=slo_classes,
        propagate=propagate,
    )
    runtime.resource()  # detecting it and importing the SDK takes longer than a first request should
    return runtime


def disabled() -> bool:
    """Return whether the application's environment switches OpenTelemetry off."""
    return os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def running() -> Runtime | None:
    """Return the runtime, None if nothing is recorded."""
    return _running[0] if _running else None


def start(runtime: Callable[[], Runtime]) -> Runtime:
    """Return the running runtime, or make it."""
    if (there := running()) is not None:
        return there
    made = runtime()  # without the lock: detecting the resource may take seconds, and runs code of the application
    with _lock:
        if not _running:
            _running.append(made)
        runs = _running[0]
    _register_hooks()
    if runs is made and "OTEL_LLM_DOCTOR_DIR" in os.environ:
        from otel_llm.instrumentation.process import doctor_report

        doctor_report.begin(made)
    return runs


def join(user: str, runtime: Callable[[], Runtime]) -> Runtime:
    """Return the running runtime, or make it; it is not stopped before `user` leaves."""
    running = start(runtime)
    _users.add(user)
    return running


def leave(user: str) -> None:
    """Stop the runtime if `user` was the last one that joined it."""
    _users.discard(user)
    if not _users:
        stop()


def stop(timeout_s: float | None = None) -> bool:
    """Stop the runtime, if one runs; return whether all recorded data was settled in time."""
    with _lock:
        _users.clear()
        stopped = _running.pop() if _running else None
    return stopped is None or stopped.stop(timeout_s)


def _after_fork() -> None:
    global _lock  # noqa: PLW0603  another thread of the parent may have held it
    _lock = threads.lock()
    for runtime in _running:
        with contextlib.suppress(Exception):
            runtime.after_fork()


_registered: list[Stops] = []


def _register_hooks() -> None:
    if _registered:  # they cannot be removed: once a process
        return
    _registered.append(Stops(running))
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_after_fork)


def warn(bug: BaseException) -> None:
    """Log our failure, once."""
    if (runtime := running()) is not None:
        runtime.warn(bug)
