"""Egress of the service over OTLP, where it is configured: forwarded exports, its metrics, closed windows."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from otel_llm.collector.export.forward import Forwarder
from otel_llm.collector.export.metric_export import MetricsOut
from otel_llm.collector.export.own_listeners import refuse_own_listener
from otel_llm.collector.export.window_export import WindowsOut

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from prometheus_client.core import Metric

    from otel_llm.collector.settings import Settings
    from otel_llm.shared.clock import Clock
    from otel_llm.shared.web.address import Address


@dataclass(slots=True)
class Egress:
    """The senders to other OTLP endpoints; each has a queue and a thread of its own.

    Raises:
        StartError: a target cannot be used.
    """

    settings: Settings
    clock: Clock
    instance_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    forward: Forwarder | None = None
    windows: WindowsOut | None = None
    _metrics: MetricsOut | None = None

    def __post_init__(self) -> None:
        """Create the senders of exports and windows."""
        forward, windows = self.settings.forward, self.settings.otlp.windows
        if forward is not None:
            self.forward = Forwarder(forward, forward.queue_bytes)
        if windows is not None:
            self.windows = WindowsOut(
                windows,
                now_ns=self.clock.now_ns,
                instance_id=self.instance_id,
                queue_bytes=windows.queue_bytes,
                linger_s=windows.interval_s,
            )

    def start(self, families: Callable[[], Iterable[Metric]]) -> None:
        """Start sending; `families` returns the current metrics."""
        metrics = self.settings.otlp.metrics
        if metrics is not None:
            self._metrics = MetricsOut(
                metrics,
                families,
                now_ns=self.clock.now_ns,
                instance_id=self.instance_id,
                interval_s=metrics.interval_s,
            )
            self._metrics.start()
        if self.forward is not None:
            self.forward.start()
        if self.windows is not None:
            self.windows.start()

    def stop_metrics(self, grace_s: float) -> None:
        """Send the metrics a last time; the evaluator's thread must still run, as it collects them."""
        if self._metrics is not None:
            self._metrics.stop(grace_s)

    def stop(self, grace_s: float) -> None:
        """Send the queued items within `grace_s` seconds; drop and count the rest."""
        for one in (self.forward, self.windows):
            if one is not None:
                one.stop(grace_s)

    def counts(self) -> dict[str, int]:
        """Return the counts of all senders, by the keys of the collector's counts."""
        counts: dict[str, int] = {}
        for one in (self.forward, self.windows, self._metrics):
            if one is not None:
                counts |= one.counts()
        return counts


def refuse_own_listeners(settings: Settings, listeners: Sequence[Address]) -> None:
    """Refuse targets that are listeners of this collector: every export would be forwarded for ever.

    Raises:
        StartError: a target is.
    """
    for target in settings.targets:
        refuse_own_listener(target, listeners)
