"""Convert OTLP/JSON to the protobuf messages, as written by the Collector's file exporter and OTLP/HTTP clients.

It is proto3's JSON mapping with three exceptions (OTLP 1.x, "JSON Protobuf Encoding"): trace and span ids are hex,
enums are integers, names are lowerCamelCase. The reader is liberal where it costs nothing: it accepts enum names,
snake_case names and 64-bit integers written as numbers, and ignores unknown fields.
"""

from __future__ import annotations

import json
from base64 import b64decode, urlsafe_b64decode
from binascii import Error as Base64Error
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NoReturn

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import (
    AnyValue,
    ArrayValue,
    InstrumentationScope,
    KeyValue,
    KeyValueList,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status

from otel_llm.formats.otlp.length_delimited import refuse_many_json_parts
from otel_llm.formats.records import DecodeError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Convert = Callable[[Any], Any]

MAX_DEPTH: Final = 24
"""Nesting of attribute values at most: three levels of messages each, of the 100 that protobuf itself would parse."""


class _Wrong(Exception):  # noqa: N818 - turned into a DecodeError with its path
    """An expectation that failed; it collects the path on its way up to the caller."""

    def __init__(self, expected: str) -> None:
        super().__init__(expected)
        self.path: list[str] = []


def parse_json(text: bytes | str, *, free: int | None = None) -> ExportTraceServiceRequest:
    """Return the export request of a JSON document.

    Raises:
        DecodeError: it is no JSON, no object, or a known field has a value that cannot be its own; or more small
            values are in it than its bytes justify and `free` (`framing`).
    """
    refuse_many_json_parts(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"), free)
    return from_object(load_json(text))


def load_json(text: bytes | str) -> dict[str, Any]:
    """Return the JSON object of a text.

    Raises:
        DecodeError: it is no JSON object.
    """
    try:
        data = json.loads(text if isinstance(text, str) else text.decode("utf-8-sig"))
    except RecursionError:
        raise DecodeError("not OTLP JSON: nested too deeply") from None
    except ValueError as error:  # UnicodeDecodeError and JSONDecodeError too
        raise DecodeError(f"not JSON: {error}") from error
    if not isinstance(data, dict):
        raise DecodeError("not OTLP JSON: expected an object")
    return data


def from_object(data: Mapping[str, Any]) -> ExportTraceServiceRequest:
    """Return the export request of a JSON object.

    Raises:
        DecodeError: a known field has a value of a wrong type; the message says where.
    """
    try:
        message = _message(ExportTraceServiceRequest, _REQUEST)(data)
    except _Wrong as wrong:
        where = "".join(reversed(wrong.path)).lstrip(".")
        raise DecodeError(f"not OTLP JSON: {where or 'document'}: expected {wrong}") from None
    except RecursionError:
        raise DecodeError("not OTLP JSON: nested too deeply") from None
    assert isinstance(message, ExportTraceServiceRequest)  # noqa: S101 - for the type checker
    return message


def _message(kind: type, fields: Mapping[str, tuple[str, Convert]]) -> Convert:
    """Return the converter of an object to a `kind`, by its table of fields: JSON name -> (field name, converter)."""

    def convert(data: Any) -> Any:
        if not isinstance(data, dict):
            raise _Wrong("an object")
        values: dict[str, Any] = {}
        name = ""
        try:
            for name, value in data.items():
                entry = fields.get(name)
                if entry is not None and value is not None:  # null is absent, in proto3's mapping
                    values[entry[0]] = entry[1](value)
            name = ""
            return kind(**values)
        except _Wrong as wrong:
            wrong.path.append(f".{name}")
            raise
        except (ValueError, TypeError) as error:  # an integer out of its range, a lone surrogate
            raise _Wrong(f"values in range ({error})") from None

    return convert


def _many(each: Convert) -> Convert:
    def convert(data: Any) -> list[Any]:
        if not isinstance(data, list):
            raise _Wrong("an array")
        items = []
        try:
            for item in data:
                items.append(each(item))  # noqa: PERF401 - its length is the index in the message
        except _Wrong as wrong:
            wrong.path.append(f"[{len(items)}]")
            raise
        return items

    return convert


def _text(data: Any) -> str:
    if type(data) is not str:
        raise _Wrong("a string")
    return data


def _boolean(data: Any) -> bool:
    if type(data) is not bool:
        raise _Wrong("true or false")
    return data


def _integer(data: Any) -> int:
    if type(data) is int:
        return data
    if type(data) is float and data.is_integer():
        return int(data)
    if type(data) is str and len(data) <= 20 and data.isascii() and data.removeprefix("-").isdigit():
        return int(data)
    raise _Wrong("an integer")


def _double(data: Any) -> float:
    try:
        # "NaN", "Infinity" and "-Infinity" are strings in the mapping; some write them bare.
        return float(data if type(data) in (int, float) else _text(data))
    except (ValueError, OverflowError):
        raise _Wrong("a number") from None


def _hex(data: Any) -> bytes:
    try:
        return bytes.fromhex(_text(data))
    except ValueError:
        raise _Wrong("hex digits") from None


def _base64(data: Any) -> bytes:
    text = _text(data)
    padded = text + "=" * (-len(text) % 4)
    try:
        return urlsafe_b64decode(padded) if "-" in text or "_" in text else b64decode(padded, validate=True)
    except (Base64Error, ValueError):
        raise _Wrong("base64") from None


def _enum(kind: Any) -> Convert:
    def convert(data: Any) -> int:
        if type(data) is str and data in kind.keys():  # noqa: SIM118 - an enum wrapper is no mapping
            return int(kind.Value(data))
        return _integer(data)

    return convert


@cache
def _any_value(depth: int) -> Convert:
    """Return the converter of a value that stands `depth` levels deep; its tables are made once."""
    if depth > MAX_DEPTH:
        return _too_deep

    def value(nested: Any) -> AnyValue:
        return _value(nested, depth + 1)

    pair = _message(KeyValue, by_both_names({"key": _text, "value": value}))
    return _message(
        AnyValue,
        by_both_names(
            {
                "stringValue": _text,
                "boolValue": _boolean,
                "intValue": _integer,
                "doubleValue": _double,
                "bytesValue": _base64,
                "arrayValue": _message(ArrayValue, by_both_names({"values": _many(value)})),
                "kvlistValue": _message(KeyValueList, by_both_names({"values": _many(pair)})),
            }
        ),
    )


def _too_deep(_: Any) -> NoReturn:
    raise _Wrong(f"at most {MAX_DEPTH} levels of values")


def by_both_names(fields: Mapping[str, Convert]) -> dict[str, tuple[str, Convert]]:
    """Return the table under the JSON names and under protobuf's own."""
    table: dict[str, tuple[str, Convert]] = {}
    for name, convert in fields.items():
        own = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
        table[name] = table[own] = (own, convert)
    return table


def _value(data: Any, depth: int = 0) -> AnyValue:
    """Make a value; the plain kinds, nearly all there are, without the tables."""
    if isinstance(data, dict) and len(data) == 1 and depth <= MAX_DEPTH:
        ((name, inner),) = data.items()
        match name:
            case "stringValue" if type(inner) is str:
                return AnyValue(string_value=inner)
            case "intValue" if inner is not None:
                return AnyValue(int_value=_integer(inner))
            case "doubleValue" if type(inner) is float:
                return AnyValue(double_value=inner)
    made = _any_value(depth)(data)
    assert isinstance(made, AnyValue)  # noqa: S101 - for the type checker
    return made


_ATTRIBUTES: Final = {
    "attributes": _many(_message(KeyValue, by_both_names({"key": _text, "value": _value}))),
    "droppedAttributesCount": _integer,
}
_EVENT: Final = by_both_names({"timeUnixNano": _integer, "name": _text, **_ATTRIBUTES})
_LINK: Final = by_both_names({"traceId": _hex, "spanId": _hex, "traceState": _text, "flags": _integer, **_ATTRIBUTES})
_STATUS: Final = by_both_names({"message": _text, "code": _enum(Status.StatusCode)})
_SPAN: Final = by_both_names(
    {
        "traceId": _hex,
        "spanId": _hex,
        "parentSpanId": _hex,
        "traceState": _text,
        "flags": _integer,
        "name": _text,
        "kind": _enum(Span.SpanKind),
        "startTimeUnixNano": _integer,
        "endTimeUnixNano": _integer,
        "events": _many(_message(Span.Event, _EVENT)),
        "droppedEventsCount": _integer,
        "links": _many(_message(Span.Link, _LINK)),
        "droppedLinksCount": _integer,
        "status": _message(Status, _STATUS),
        **_ATTRIBUTES,
    }
)
_SCOPE: Final = by_both_names({"name": _text, "version": _text, **_ATTRIBUTES})
_SCOPE_SPANS: Final = by_both_names(
    {
        "scope": _message(InstrumentationScope, _SCOPE),
        "spans": _many(_message(Span, _SPAN)),
        "schemaUrl": _text,
    }
)
_RESOURCE_SPANS: Final = by_both_names(
    {
        "resource": _message(Resource, by_both_names(_ATTRIBUTES)),
        "scopeSpans": _many(_message(ScopeSpans, _SCOPE_SPANS)),
        "schemaUrl": _text,
    }
)
_REQUEST: Final = by_both_names({"resourceSpans": _many(_message(ResourceSpans, _RESOURCE_SPANS))})
