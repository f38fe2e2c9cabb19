"""The OpenTelemetry project's own OTLP exporters for metrics and logs, made for one target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from otel_llm.export.records import version

if TYPE_CHECKING:
    from opentelemetry.sdk._logs.export import LogRecordExporter
    from opentelemetry.sdk.metrics.export import MetricExporter

    from otel_llm.config.otlp_target import OtlpTarget, Signal

SERVICE_NAME: Final = "otel-llm-collector"
POINTS_A_REQUEST: Final = 2000
"""Data points in one request: below 2 MiB with long labels; gRPC servers refuse more than 4 MiB by default."""


def resource(instance_id: str) -> Resource:
    """Return the OTLP resource of this collector; `instance_id` distinguishes it from others."""
    return Resource({"service.name": SERVICE_NAME, "service.instance.id": instance_id, "service.version": version()})


def scope() -> InstrumentationScope:
    """Return the OTLP scope of this collector."""
    return InstrumentationScope("otel_llm.collector", version())


def metric_exporter(target: OtlpTarget) -> MetricExporter:
    """Return the exporter of metrics for a target; it connects with its first export."""
    if target.protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcExporter

        return GrpcExporter(**_over_grpc(target), max_export_batch_size=POINTS_A_REQUEST)
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpExporter

    return HttpExporter(**_over_http(target, "metrics"), max_export_batch_size=POINTS_A_REQUEST)


def log_exporter(target: OtlpTarget) -> LogRecordExporter:
    """Return the exporter of log records for a target; it connects with its first export."""
    if target.protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter as GrpcExporter

        return GrpcExporter(**_over_grpc(target))
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter as HttpExporter

    return HttpExporter(**_over_http(target, "logs"))


def _over_grpc(target: OtlpTarget) -> dict[str, Any]:
    import grpc

    return {
        "endpoint": target.endpoint,
        "insecure": not target.tls,
        "credentials": grpc.ssl_channel_credentials(root_certificates=target.certificates()) if target.tls else None,
        "headers": target.metadata(),
        "timeout": target.timeout_s,
        "compression": grpc.Compression.Gzip if target.compression == "gzip" else grpc.Compression.NoCompression,
    }


def _over_http(target: OtlpTarget, signal: Signal) -> dict[str, Any]:
    from opentelemetry.exporter.otlp.proto.http import Compression

    return {
        "endpoint": target.url(signal),
        "certificate_file": None if target.ca_file is None else str(target.ca_file),
        "headers": dict(target.headers.pairs),
        "timeout": target.timeout_s,
        "compression": Compression.Gzip if target.compression == "gzip" else Compression.NoCompression,
        "session": target.session(),
    }
