"""The parts that several sections of the settings file share: durations, names of files, OTLP endpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import BeforeValidator, Field

from otel_llm.rules.files.durations import DURATION_ADVICE
from otel_llm.rules.files.schema_errors import StrictModel, duration, wrong
from otel_llm.rules.files.yamlfile import UnreadableConfigError
from otel_llm.shared.errors import StartError
from otel_llm.shared.otlp_target import OtlpTarget
from otel_llm.shared.secret_files import read_headers

if TYPE_CHECKING:
    from pathlib import Path

    from otel_llm.rules.files.yamlfile import KeyPath, YamlFile

_MIB: Final = 2**20


def _seconds(value: object) -> float:
    return duration(value) / 1e9


def _seconds_of_duration(value: object) -> float:
    length_s = _seconds(value)
    if not length_s:
        raise wrong("must be longer than zero", DURATION_ADVICE)
    return length_s


Duration = Annotated[float, BeforeValidator(_seconds_of_duration)]
OptionalDuration = Annotated[float, BeforeValidator(_seconds)]
"""A duration that may be 0, which is for never."""
FileName = Annotated[str, Field(min_length=1)]


class EndpointShape(StrictModel):
    """An OTLP endpoint and how to send to it."""

    endpoint: Annotated[str, Field(min_length=1)]
    protocol: Literal["grpc", "http/protobuf"] = "grpc"
    headers_file: FileName | None = None
    compression: Literal["none", "gzip"] = "gzip"
    timeout: Duration = 10.0
    ca_file: FileName | None = None


class TargetShape(EndpointShape):
    """An endpoint with a queue before it."""

    queue_bytes: Annotated[int, Field(ge=_MIB, le=2**40)] = 64 * _MIB


def target(file: YamlFile, folder: Path, section: EndpointShape, place: KeyPath) -> OtlpTarget:
    """Build the target that an endpoint's section describes.

    Raises:
        ConfigError: it cannot be used, or a file that it names cannot.
    """
    headers: tuple[tuple[str, str], ...] = ()
    headers_file = None if section.headers_file is None else folder / section.headers_file
    if headers_file is not None:
        try:
            headers = read_headers(headers_file)
        except UnreadableConfigError as error:
            raise file.refuse_file((*place, "headers_file"), error) from None
    ca_file = None if section.ca_file is None else folder / section.ca_file
    try:
        return OtlpTarget(
            section.endpoint, section.protocol, headers, section.compression, section.timeout, ca_file, headers_file
        )
    except StartError as error:
        raise file.refuse((*place, "endpoint"), str(error)) from None
