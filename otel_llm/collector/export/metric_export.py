"""Export of the families of `/metrics` as OTLP metrics, at an interval, by the OpenTelemetry project's exporter.

Names are those of `/metrics` without `_total`, which Prometheus backends add again. A counter keeps `_total` if the
name without it is another family's (`otel_llm_idle_seconds` is a histogram, too).
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Metric as OtlpMetric

from otel_llm.collector.telemetry.self_metrics import OWN_UNITS
from otel_llm.live.user_metrics import USER_UNITS
from otel_llm.shared.otlp_exporters import metric_exporter, resource, scope

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from opentelemetry.sdk.resources import Resource
    from prometheus_client.core import Metric

    from otel_llm.config.otlp_target import OtlpTarget

UNITS: Final[Mapping[str, str]] = {**USER_UNITS, **OWN_UNITS}
DEFAULT_INTERVAL_S: Final = 60.0
"""The default of the OpenTelemetry SDK's periodic reader."""

_CUMULATIVE: Final = AggregationTemporality.CUMULATIVE
_log = logging.getLogger(__name__)


class MetricsOut:
    """Sends all families at an interval, and once more at the end, from a thread of its own.

    Args:
        target: the endpoint.
        families: returns the current families; called in this thread. Its error counts as a failure.
        now_ns: the collector's clock, unix ns.
        instance_id: distinguishes this collector from others.
    """

    def __init__(
        self,
        target: OtlpTarget,
        families: Callable[[], Iterable[Metric]],
        *,
        now_ns: Callable[[], int],
        instance_id: str,
        interval_s: float = DEFAULT_INTERVAL_S,
    ) -> None:
        self._families = families
        self._now_ns = now_ns
        self._start_ns = now_ns()
        self._resource = resource(instance_id)
        self._interval_s = interval_s
        self._exporter = metric_exporter(target)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otel-llm-metrics-out", daemon=True)
        self.sent = 0
        self.failed = 0

    def start(self) -> None:
        """Start sending, first after one interval."""
        self._thread.start()

    def stop(self, grace_s: float) -> None:
        """Send a last time, and return when that is done, after `grace_s` seconds at the latest."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(grace_s)
        self._exporter.shutdown(timeout_millis=0)

    def counts(self) -> dict[str, int]:
        """Return the counts of exports, by the keys of the collector's counts."""
        return {"metrics_out_sent": self.sent, "metrics_out_failed": self.failed}

    def _run(self) -> None:
        with suppress_instrumentation():  # an instrumented client would trace our own exports
            while not self._stopping.wait(self._interval_s):
                self._export()
            self._export()

    def _export(self) -> None:
        try:
            data = metrics_data(self._families(), self._start_ns, self._now_ns(), self._resource)
            taken = self._exporter.export(data) is MetricExportResult.SUCCESS
        except Exception:  # noqa: BLE001  a failed export must not end the thread
            if not self.failed:
                _log.exception("otel-llm: metrics could not be sent over OTLP; later failures are only counted")
            taken = False
        self.sent += taken
        self.failed += not taken


def metrics_data(families: Iterable[Metric], start_ns: int, now_ns: int, made_by: Resource) -> MetricsData:
    """Return Prometheus families as OTLP metrics, cumulative from `start_ns` to `now_ns` (unix ns)."""
    families = list(families)
    other_names = {family.name for family in families if family.type != "counter"}
    metrics = [
        OtlpMetric(
            name=f"{family.name}_total" if family.type == "counter" and family.name in other_names else family.name,
            description=family.documentation,
            unit=UNITS.get(family.name, ""),
            data=_DATA[family.type](family, start_ns, now_ns),
        )
        for family in families
    ]
    scopes = [ScopeMetrics(scope=scope(), metrics=metrics, schema_url="")]
    return MetricsData([ResourceMetrics(resource=made_by, scope_metrics=scopes, schema_url="")])


def _sum(family: Metric, start_ns: int, now_ns: int) -> Sum:
    return Sum(_points(family, start_ns, now_ns), _CUMULATIVE, is_monotonic=True)


def _gauge(family: Metric, start_ns: int, now_ns: int) -> Gauge:
    return Gauge(_points(family, start_ns, now_ns))


def _points(family: Metric, start_ns: int, now_ns: int) -> list[NumberDataPoint]:
    return [NumberDataPoint(sample.labels, start_ns, now_ns, sample.value) for sample in family.samples]


def _histogram(family: Metric, start_ns: int, now_ns: int) -> Histogram:
    return Histogram(list(_histogram_points(family, start_ns, now_ns)), _CUMULATIVE)


def _histogram_points(family: Metric, start_ns: int, now_ns: int) -> Iterator[HistogramDataPoint]:
    """Yield a point for each set of labels; its samples are adjacent: buckets ascending, the count, the sum."""
    bounds: list[float] = []
    running: list[int] = []
    for sample in family.samples:
        if sample.name.endswith("_bucket"):
            bounds.append(float(sample.labels["le"]))
            running.append(int(sample.value))
        elif sample.name.endswith("_sum"):
            # Minimum and maximum are unknown, and optional in OTLP.
            yield HistogramDataPoint(
                attributes=sample.labels,
                start_time_unix_nano=start_ns,
                time_unix_nano=now_ns,
                count=running[-1],
                sum=sample.value,
                bucket_counts=_steps(running),
                explicit_bounds=bounds[:-1],
                min=None,  # type: ignore[arg-type]
                max=None,  # type: ignore[arg-type]
            )
            bounds, running = [], []


def _steps(running: Sequence[int]) -> list[int]:
    return [upto - before for before, upto in zip([0, *running[:-1]], running, strict=True)]


_DATA: Final[Mapping[str, Callable[[Any, int, int], Any]]] = {
    "counter": _sum,
    "gauge": _gauge,
    "histogram": _histogram,
}
