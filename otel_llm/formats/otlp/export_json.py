"""Convert OTLP/JSON to the protobuf messages, as written by the Collector's file exporter and OTLP/HTTP clients.

It is proto3's JSON mapping with three exceptions (OTLP 1.x, "JSON Protobuf Encoding"): trace and span ids are hex,
enums are integers, names are lowerCamelCase. The fields are those of protobuf's descriptors. Enum names, snake_case
names and 64-bit integers written as numbers are accepted, and unknown fields are ignored. Protobuf's own `json_format`
takes four times as long.
"""

from __future__ import annotations

from base64 import b64decode, urlsafe_b64decode
from binascii import Error as Base64Error
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message_factory import GetMessageClass
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from otel_llm.formats.io.json_values import load
from otel_llm.formats.otlp.length_delimited import refuse_many_json_parts
from otel_llm.formats.records import DecodeError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from google.protobuf.descriptor import Descriptor

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
    return from_object(load(text))


def from_object(data: Any) -> ExportTraceServiceRequest:
    """Return the export request of a JSON object.

    Raises:
        DecodeError: it is no object, or a known field has a value of a wrong type; the message says where.
    """
    try:
        message = _message(ExportTraceServiceRequest.DESCRIPTOR, 0, data)
    except _Wrong as wrong:
        where = "".join(reversed(wrong.path)).lstrip(".")
        raise DecodeError(f"not OTLP JSON: {where or 'document'}: expected {wrong}") from None
    except RecursionError:
        raise DecodeError("not OTLP JSON: nested too deeply") from None
    assert isinstance(message, ExportTraceServiceRequest)  # noqa: S101 - for the type checker
    return message


def _message(kind: Descriptor, depth: int, data: Any) -> Any:
    """Return the message of an object, which is `depth` levels deep in an attribute's value."""
    if not isinstance(data, dict):
        raise _Wrong("an object")
    fields = fields_of(kind, depth)
    values: dict[str, Any] = {}
    name = ""
    try:
        for name, value in data.items():
            entry = fields.get(name)
            if entry is not None and value is not None:  # null is absent, in proto3's mapping
                values[entry[0]] = entry[1](value)
        name = ""
        return GetMessageClass(kind)(**values)
    except _Wrong as wrong:
        wrong.path.append(f".{name}")
        raise
    except (ValueError, TypeError) as error:  # an integer out of its range, a lone surrogate
        raise _Wrong(f"values in range ({error})") from None


def _many(each: Convert, data: Any) -> list[Any]:
    if not isinstance(data, list):
        raise _Wrong("an array")
    items: list[Any] = []
    try:
        for item in data:
            items.append(each(item))  # noqa: PERF401 - its length is the index in the message
    except _Wrong as wrong:
        wrong.path.append(f"[{len(items)}]")
        raise
    return items


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


def _enum(numbers: Mapping[str, int], data: Any) -> int:
    known = numbers.get(data) if type(data) is str else None
    return _integer(data) if known is None else known


def _value(depth: int, data: Any) -> AnyValue:
    """Make an attribute's value; the plain kinds, nearly all there are, without the table."""
    if depth > MAX_DEPTH:
        raise _Wrong(f"at most {MAX_DEPTH} levels of values")
    if isinstance(data, dict) and len(data) == 1:
        ((name, inner),) = data.items()
        match name:
            case "stringValue" if type(inner) is str:
                return AnyValue(string_value=inner)
            case "intValue" if inner is not None:
                return AnyValue(int_value=_integer(inner))
            case "doubleValue" if type(inner) is float:
                return AnyValue(double_value=inner)
    made = _message(_ANY_VALUE, depth + 1, data)
    assert isinstance(made, AnyValue)  # noqa: S101 - for the type checker
    return made


_ANY_VALUE: Final = AnyValue.DESCRIPTOR
_SCALARS: Final[Mapping[int, Convert]] = {
    FieldDescriptor.CPPTYPE_STRING: _text,
    FieldDescriptor.CPPTYPE_BOOL: _boolean,
    FieldDescriptor.CPPTYPE_DOUBLE: _double,
}
"""By protobuf's kind of field; any other is an integer."""


@cache
def fields_of(kind: Descriptor, depth: int) -> Mapping[str, tuple[str, Convert]]:
    """Return a message's fields by their names in JSON and in protobuf: the latter name, and a converter of values."""
    table: dict[str, tuple[str, Convert]] = {}
    for field in kind.fields:
        convert = _converter(field, depth)
        each = partial(_many, convert) if field.default_value == [] else convert  # only a repeated field has that
        table[field.json_name] = table[field.name] = (field.name, each)
    return table


def _converter(field: FieldDescriptor, depth: int) -> Convert:
    if field.message_type is not None:
        return partial(_value if field.message_type is _ANY_VALUE else partial(_message, field.message_type), depth)
    if field.enum_type is not None:
        return partial(_enum, {one.name: one.number for one in field.enum_type.values})
    if field.type == FieldDescriptor.TYPE_BYTES:  # ids, and attribute values of bytes
        return _base64 if field.containing_type is _ANY_VALUE else _hex
    return _SCALARS.get(field.cpp_type, _integer)
