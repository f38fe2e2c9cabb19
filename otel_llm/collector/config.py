"""The service's own settings (`--config`): limits of the doors, the journal's files, labels of the metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, ValidationError

from otel_llm.collector.pipeline import MAX_STREAMS
from otel_llm.rules.refusals import StrictModel, refusals
from otel_llm.rules.yamlfile import load_yaml

if TYPE_CHECKING:
    from pathlib import Path

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Settings:
    """What an operator may change; bytes and seconds. The defaults are those of an absent key."""

    message_bytes: int = 16 * MIB
    """An export request, decompressed, is at most this."""
    max_streams: int = MAX_STREAMS
    """Streams in flight; beyond them senders are told to come back."""
    journal_file_bytes: int = 64 * MIB
    journal_file_s: int = 600
    instance_label: bool = False
    """Whether `instance` labels the metrics (a fleet of known size)."""


_DEFAULTS = Settings()


class _Limits(StrictModel):
    message_bytes: Annotated[int, Field(ge=1024, le=1024 * MIB)] = _DEFAULTS.message_bytes
    streams_in_flight: Annotated[int, Field(ge=1)] = _DEFAULTS.max_streams


class _Journal(StrictModel):
    file_bytes: Annotated[int, Field(ge=4096)] = _DEFAULTS.journal_file_bytes
    file_seconds: Annotated[int, Field(ge=1)] = _DEFAULTS.journal_file_s


class _Metrics(StrictModel):
    instance_label: bool = _DEFAULTS.instance_label


class _File(StrictModel):
    version: Literal[1]
    limits: _Limits = Field(default_factory=_Limits)
    journal: _Journal = Field(default_factory=_Journal)
    metrics: _Metrics = Field(default_factory=_Metrics)


def load_settings(path: Path | None) -> Settings:
    """Read a settings file, the defaults without one; raise ConfigError naming file, line, key and advice."""
    if path is None:
        return Settings()
    file = load_yaml(path)
    try:
        model = _File.model_validate(file.data)
    except ValidationError as error:
        raise refusals(file, error)[0] from None
    return Settings(
        message_bytes=model.limits.message_bytes,
        max_streams=model.limits.streams_in_flight,
        journal_file_bytes=model.journal.file_bytes,
        journal_file_s=model.journal.file_seconds,
        instance_label=model.metrics.instance_label,
    )
