"""The schema of the settings file (`--config`), and its conversion to `Settings`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import Field, ValidationError

from otel_llm.actions.config.alerts_and_actions import (
    ActionsShape,
    AlertmanagerShape,
    AlertsShape,
    ReceiverShapes,
    build_actions,
    build_alertmanager,
    build_alerts,
    build_receivers,
)
from otel_llm.actions.config.service import (
    AuthShape,
    CorsShape,
    DecisionsShape,
    FilesShape,
    MetricsShape,
    OperatorsShape,
    RetainBytes,
    TlsShape,
    WebShape,
    build_auth,
    build_tls,
)
from otel_llm.actions.config.target import Duration, TargetShape, target
from otel_llm.collector.config import settings as config
from otel_llm.rules.files.schema_errors import StrictModel, config_errors
from otel_llm.rules.files.yamlfile import load_yaml

if TYPE_CHECKING:
    from pathlib import Path

    from otel_llm.rules.files.yamlfile import YamlFile

_MIB: Final = config.MIB
_LIMITS: Final = config.Limits()
_JOURNAL: Final = config.JournalSettings()


_Count = Annotated[int, Field(ge=1, le=10**9)]
_Seconds = Annotated[float, Field(gt=0, le=10**9)]
_LabelValues = Annotated[list[Annotated[str, Field(min_length=1, max_length=256)]], Field(max_length=1000)]


class _Limits(StrictModel):
    message_bytes: Annotated[int, Field(ge=1024, le=1024 * _MIB)] = _LIMITS.message_bytes
    receiving_bytes: Annotated[int, Field(ge=1024, le=2**40)] = _LIMITS.receiving_bytes
    streams_in_flight: _Count = _LIMITS.streams_in_flight
    segments_per_request: _Count = _LIMITS.segments_per_request
    attributes_per_span: Annotated[int, Field(ge=1, le=10_000)] = _LIMITS.attributes_per_span
    attribute_chars: Annotated[int, Field(ge=16, le=_MIB)] = _LIMITS.attribute_chars
    metrics_bytes: Annotated[int, Field(ge=_MIB, le=1024 * _MIB)] = _LIMITS.metrics_bytes
    connections: Annotated[int, Field(ge=1, le=100_000)] = _LIMITS.connections
    connections_per_peer: Annotated[int, Field(ge=1, le=100_000)] | None = None
    viewers: Annotated[int, Field(ge=0, le=1024)] = _LIMITS.viewers
    concurrent_exports: Annotated[int, Field(ge=1, le=1024)] = _LIMITS.concurrent_exports
    queued_exports: Annotated[int, Field(ge=1, le=10**6)] = _LIMITS.queued_exports
    body_seconds: _Seconds = _LIMITS.body_s
    header_seconds: _Seconds = _LIMITS.header_s
    idle_connection_seconds: _Seconds = _LIMITS.idle_connection_s
    drain_seconds: _Seconds = _LIMITS.drain_s

    def build(self) -> config.Limits:
        values = self.model_dump()
        return config.Limits(**{name.removesuffix("econds"): value for name, value in values.items()})


class _Journal(StrictModel):
    file_bytes: Annotated[int, Field(ge=4096, le=2**40)] = _JOURNAL.file_bytes
    file_seconds: Annotated[float, Field(ge=1, le=10**9)] = _JOURNAL.file_s
    fsync: Literal["always", "interval", "never"] = _JOURNAL.fsync
    fsync_interval: Duration = _JOURNAL.fsync_interval_s
    compress: bool = _JOURNAL.compress
    retain_bytes: RetainBytes = None
    retain_seconds: Annotated[float, Field(ge=1)] | None = None

    def build(self) -> config.JournalSettings:
        return config.JournalSettings(
            file_bytes=self.file_bytes,
            file_s=self.file_seconds,
            fsync=self.fsync,
            fsync_interval_s=self.fsync_interval,
            compress=self.compress,
            retain_bytes=self.retain_bytes if "retain_bytes" in self.model_fields_set else "share",
            retain_s=self.retain_seconds,
        )


class _Out(TargetShape):
    interval: Duration = 10.0


class _Otlp(StrictModel):
    metrics: _Out | None = None
    windows: _Out | None = None


class _File(StrictModel):
    version: Literal[1]
    limits: _Limits = Field(default_factory=_Limits)
    journal: _Journal = Field(default_factory=_Journal)
    decisions: DecisionsShape = Field(default_factory=DecisionsShape)
    files: FilesShape = Field(default_factory=FilesShape)
    metrics: MetricsShape = Field(default_factory=MetricsShape)
    tls: TlsShape | None = None
    auth: AuthShape | None = None
    operators: OperatorsShape | None = None
    cors: CorsShape = Field(default_factory=lambda: CorsShape(origins=[]))
    web: WebShape = Field(default_factory=WebShape)
    forward: TargetShape | None = None
    otlp: _Otlp = Field(default_factory=_Otlp)
    receivers: ReceiverShapes = Field(default_factory=dict)
    alertmanager: AlertmanagerShape | None = None
    alerts: AlertsShape = Field(default_factory=AlertsShape)
    actions: ActionsShape = Field(default_factory=ActionsShape)


def load_settings(path: Path | None) -> config.Settings:
    """Read a settings file; return the defaults without one. Paths in it are relative to its folder, or absolute.

    Raises:
        ConfigError: it cannot be used, or a file that it names cannot; with file, line, key and advice.
    """
    if path is None:
        return config.Settings()
    file = load_yaml(path)
    try:
        model = _File.model_validate(file.data)
    except ValidationError as error:
        raise config_errors(file, error)[0] from None
    if model.limits.message_bytes > model.limits.receiving_bytes:
        raise file.refuse(("limits",), "receiving_bytes is less than message_bytes", "let one message fit")
    folder = path.parent
    receivers = build_receivers(file, folder, model.receivers)
    return config.Settings(
        limits=model.limits.build(),
        journal=model.journal.build(),
        decisions=model.decisions.build(),
        files=model.files.build(),
        metrics=model.metrics.build(),
        tls=None if model.tls is None else build_tls(file, folder, model.tls),
        auth=build_auth(file, folder, model.auth, model.operators),
        cors_origins=frozenset(model.cors.origins),
        web_hosts=frozenset(model.web.hosts),
        forward=None if model.forward is None else _forward(file, folder, model.forward),
        otlp_metrics=None if model.otlp.metrics is None else _out(file, folder, model.otlp.metrics, "metrics"),
        otlp_windows=None if model.otlp.windows is None else _out(file, folder, model.otlp.windows, "windows"),
        receivers=receivers,
        alertmanager=None if model.alertmanager is None else build_alertmanager(file, folder, model.alertmanager),
        alerts=build_alerts(file, folder, model.alerts, receivers),
        actions=build_actions(file, folder, model.actions),
    )


def _forward(file: YamlFile, folder: Path, section: TargetShape) -> config.ForwardSettings:
    return config.ForwardSettings(target(file, folder, section, ("forward",)), section.queue_bytes)


def _out(file: YamlFile, folder: Path, section: _Out, signal: str) -> config.OtlpOutSettings:
    made = target(file, folder, section, ("otlp", signal))
    return config.OtlpOutSettings(made, section.queue_bytes, section.interval)
