"""Make OTLP spans of the rows of databases and the answers of query APIs: values checked, types restored.

Then every parser of spans, ours and others', can read them.
"""

from __future__ import annotations

from contextlib import suppress
from decimal import Decimal
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from otel_llm import semconv
from otel_llm.core.limits import MAX_TIME_NS
from otel_llm.formats.records import DecodeError
from otel_llm.formats.spans.attributes import typed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from otel_llm.formats.io.skipped import Skipped

_KINDS: Final = {"INTERNAL": 1, "SERVER": 2, "CLIENT": 3, "PRODUCER": 4, "CONSUMER": 5}
ERROR: Final = 2
FIELDS: Final = frozenset(
    {
        "otel.scope.name",
        "otel.scope.version",
        "otel.library.name",
        "otel.library.version",
        "otel.status_description",
        "internal.span.format",
        "w3c.tracestate",
    }
)
"""Names of the parts of a span, or of its scope, in databases, that are no attributes."""
SDK_EVENTS: Final = 128
"""OTEL_SPAN_EVENT_COUNT_LIMIT's default."""


def dropped_events(span: Span, skipped: Skipped) -> int:
    """Return the number of dropped events to assume for a span, in a format that does not state it.

    An SDK keeps the newest 128 events of a span by default. A span with exactly so many may have had more, and its
    first tokens may be gone: the stream is incomplete, which is counted.
    """
    if len(span.events) != SDK_EVENTS or span.name == semconv.SEGMENT_SPAN:
        return 0
    skipped.anomaly("events_maybe_dropped")
    return 1


def hex_id(text: object, size: int, what: str) -> bytes:
    """Return the id of `size` bytes from hex digits; leading zeros may be missing.

    Raises:
        DecodeError: it is none.
    """
    if not isinstance(text, str) or not 0 < len(text) <= 2 * size:
        raise DecodeError(f"{what}: expected up to {2 * size} hex digits")
    try:
        return bytes.fromhex(text.zfill(2 * size))
    except ValueError:
        raise DecodeError(f"{what}: expected hex digits") from None


def whole_number(value: object, what: str, most: int = MAX_TIME_NS) -> int:
    """Return an integer from 0 to `most`, given as a number or as text.

    Raises:
        DecodeError: it is none.
    """
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 20:
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not int or not 0 <= value <= most:
        raise DecodeError(f"{what}: expected a whole number from 0 to {most}")
    return value


def seconds_ns(value: object, what: str) -> int:
    """Return the nanoseconds of a number of seconds, exactly.

    Raises:
        DecodeError: it is no finite number, or beyond the year 2116.
    """
    made = Decimal("NaN")
    written = repr(value) if isinstance(value, float) else value if isinstance(value, str) else str(value)
    if not isinstance(value, bool) and written.isascii() and "_" not in written:
        with suppress(ArithmeticError):  # no number, or one with too many digits in its exponent
            made = Decimal(written) * 10**9
    if not made.is_finite() or abs(made) > MAX_TIME_NS:
        raise DecodeError(f"{what}: expected a number of seconds, of at most {MAX_TIME_NS // 10**9}")
    return int(made.to_integral_value())


def text(value: object, what: str) -> str:
    """Return a value that is text.

    Raises:
        DecodeError: it is none.
    """
    if not isinstance(value, str):
        raise DecodeError(f"{what}: expected text")
    return value


def array(value: object, what: str) -> list[Any]:
    """Return a value that is an array, an empty one for null.

    Raises:
        DecodeError: it is none.
    """
    if value is None:
        return []
    if not isinstance(value, list):
        raise DecodeError(f"{what}: expected an array")
    return value


def span_kind(name: str) -> int:
    """Return OTLP's number of a kind of span, however it is spelled (`Client`, `SPAN_KIND_CLIENT`); 0 is unknown."""
    return _KINDS.get(name.upper().removeprefix("SPAN_KIND_"), 0)


def any_value(value: Any) -> AnyValue | None:
    """Return a plain value as OTLP's; None for a type that OTLP does not have.

    Raises:
        DecodeError: an integer of more than 64 bits, or text that is no Unicode.
    """
    try:
        match value:
            case bool():
                return AnyValue(bool_value=value)
            case int():
                return AnyValue(int_value=value)
            case float() if isfinite(value):
                return AnyValue(double_value=value)
            case str():
                return AnyValue(string_value=value)
            case bytes():
                return AnyValue(bytes_value=value)
            case list():
                return AnyValue(array_value=ArrayValue(values=[one for one in map(_scalar, value) if one is not None]))
    except ValueError as error:
        raise DecodeError(f"an attribute's value: {error}") from None
    return None


def attributes(values: Mapping[str, Any]) -> Iterable[KeyValue]:
    """Yield the attributes of an object, known ones that are text in their own type.

    Raises:
        DecodeError: a value that cannot be in OTLP.
    """
    for key, value in values.items():
        if key in FIELDS:
            continue
        made = any_value(typed(key, value) if isinstance(value, str) else value)
        if made is not None:
            yield pair(key, made)


def make_span(name: str, what: str, **fields: Any) -> Span:
    """Return a span of this name, found under `what`, with these fields.

    Raises:
        DecodeError: the name is no Unicode.
    """
    try:
        return Span(name=name, **fields)
    except ValueError as error:
        raise DecodeError(f"{what}: {error}") from None


def pair(key: str, value: AnyValue) -> KeyValue:
    """Return an attribute.

    Raises:
        DecodeError: its name is no Unicode.
    """
    try:
        return KeyValue(key=key, value=value)
    except ValueError as error:
        raise DecodeError(f"an attribute's name: {error}") from None


def request(spans: Iterable[Span], instance_id: str | None) -> ExportTraceServiceRequest:
    """Return an export request of these spans, with the process that sent them."""
    message = ExportTraceServiceRequest()
    resource = message.resource_spans.add()
    if instance_id is not None:
        # A file's bytes that are no UTF-8 stand as lone surrogates, which no message can hold.
        known = AnyValue(string_value=instance_id.encode("utf-8", "replace").decode())
        resource.resource.attributes.append(pair(semconv.SERVICE_INSTANCE_ID, known))
    resource.scope_spans.add().spans.extend(spans)
    return message


def _scalar(value: Any) -> AnyValue | None:
    return None if isinstance(value, list) else any_value(value)
