from __future__ import annotations

import json
import math
from base64 import b64encode, urlsafe_b64encode
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from support.otlp import T0_NS, Value, export, request_span, segment_span, span_id, token, trace_id

from otel_llm.formats.otlp.export_json import MAX_DEPTH, fields_of, parse_json
from otel_llm.formats.otlp.export_request import parse
from otel_llm.formats.records import DecodeError

VECTORS = Path(__file__).parents[2] / "vectors"


def as_json(message: ExportTraceServiceRequest) -> dict[str, Any]:
    """Return the OTLP JSON of a message by protobuf's own mapping, with the ids put in hex."""
    data: dict[str, Any] = json_format.MessageToDict(message, use_integers_for_enums=True)
    pairs = zip(message.resource_spans, data.get("resourceSpans", []), strict=True)
    for spans, objects in pairs:
        for scope, scope_object in zip(spans.scope_spans, objects.get("scopeSpans", []), strict=True):
            for span, span_object in zip(scope.spans, scope_object.get("spans", []), strict=True):
                for field in ("trace_id", "span_id", "parent_span_id"):
                    name = field.replace("_i", "I").replace("_s", "S")
                    if getattr(span, field):
                        span_object[name] = getattr(span, field).hex()
                for link, link_object in zip(span.links, span_object.get("links", []), strict=True):
                    link_object["traceId"], link_object["spanId"] = link.trace_id.hex(), link.span_id.hex()
    return data


def full_message() -> ExportTraceServiceRequest:
    message = export(
        segment_span(3, 17, [T0_NS, token(T0_NS + 1, 4, "tool")], choice=1, attributes={"f": 0.25, "b": False}),
        request_span(error=True, dropped_events=4, attributes={"list": ["a", "b"], "raw": b"\x00\xff\xfe", "n": -5}),
        resource={"service.name": "ö"},
    )
    span = message.resource_spans[0].scope_spans[0].spans[0]
    span.flags, span.trace_state = 257, "a=b"
    span.links.add(trace_id=trace_id(8), span_id=span_id(9), flags=1)
    nested = span.attributes.add(key="map").value.kvlist_value
    nested.values.add(key="inner", value=AnyValue(double_value=float("inf")))
    span.status.message = "why"
    message.resource_spans[0].scope_spans[0].schema_url = "s"
    return message


def test_what_protobuf_writes_is_read_back() -> None:
    message = full_message()
    assert parse_json(json.dumps(as_json(message))) == message


def test_the_shared_rows_are_otlp() -> None:
    for line in (VECTORS / "rows.jsonl").read_bytes().splitlines():
        message = parse_json(line)
        assert as_json(message)["resourceSpans"]
        assert parse(message.SerializeToString()) == message


def spans(**fields: object) -> str:
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [fields]}]}]})


def only(text: str) -> Span:
    return parse_json(text).resource_spans[0].scope_spans[0].spans[0]


@pytest.mark.parametrize("time", [17, "17", 17.0])
def test_integers_are_strings_or_numbers(time: object) -> None:
    assert only(spans(startTimeUnixNano=time)).start_time_unix_nano == 17


@pytest.mark.parametrize("kind", [3, "3", "SPAN_KIND_CLIENT"])
def test_enums_are_integers_or_names(kind: object) -> None:
    assert only(spans(kind=kind)).kind == Span.SPAN_KIND_CLIENT


def test_unknown_fields_and_nulls_are_absent() -> None:
    assert only(spans(name="x", unheardOf={"a": [1]}, traceId=None, events=None)) == Span(name="x")


def test_snake_case_names_and_upper_case_ids_are_taken() -> None:
    text = json.dumps({"resource_spans": [{"scope_spans": [{"spans": [{"trace_id": "AB" * 16}]}]}]})
    assert only(text).trace_id == b"\xab" * 16


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", math.nan, math.inf, -math.inf, 1e300, "0.5", 3])
def test_doubles(value: object) -> None:
    made = only(spans(attributes=[{"key": "k", "value": {"doubleValue": value}}])).attributes[0].value
    assert str(made.double_value) == str(float(value))  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["AP/+", "AP_-", "AA", "AA=="])
def test_bytes_are_base64_of_either_alphabet(text: str) -> None:
    value = only(spans(attributes=[{"key": "k", "value": {"bytesValue": text}}])).attributes[0].value
    assert value.bytes_value in (b"\x00\xff\xfe", b"\x00")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[]", "expected an object"),
        ("3", "expected an object"),
        ('{"resourceSpans": NaN}', "resourceSpans: expected an array"),
        (spans(startTimeUnixNano=float("nan")), "startTimeUnixNano: expected an integer"),
        (spans(endTimeUnixNano=float("inf")), "endTimeUnixNano: expected an integer"),
        ('{"resourceSpans": {}}', "resourceSpans: expected an array"),
        ('{"resourceSpans": [1]}', r"resourceSpans\[0\]: expected an object"),
        (spans(traceId="xyz"), r"resourceSpans\[0\]\.scopeSpans\[0\]\.spans\[0\]\.traceId: expected hex digits"),
        (spans(traceId="abc"), "expected hex digits"),
        (spans(traceId=12), "expected a string"),
        (spans(startTimeUnixNano="soon"), "startTimeUnixNano: expected an integer"),
        (spans(startTimeUnixNano=1.5), "expected an integer"),
        (spans(startTimeUnixNano=True), "expected an integer"),
        (spans(startTimeUnixNano=-1), "expected values in range"),
        (spans(startTimeUnixNano="99999999999999999999"), "expected values in range"),
        (spans(kind="SPAN_KIND_NONE"), "kind: expected an integer"),
        (spans(kind=2**40), "expected values in range"),
        (spans(name="\ud800"), "expected values in range"),
        (spans(attributes=[{"key": "k", "value": {"stringValue": 3}}]), "stringValue: expected a string"),
        (spans(attributes=[{"key": "k", "value": {"boolValue": 1}}]), "expected true or false"),
        (spans(attributes=[{"key": "k", "value": {"bytesValue": "%"}}]), "expected base64"),
        (spans(attributes=[{"key": "k", "value": {"doubleValue": "x"}}]), "expected a number"),
        (spans(attributes=[{"key": "k", "value": {"doubleValue": 10**400}}]), "expected a number"),
        (spans(attributes=[{"key": "k", "value": {"stringValue": "\udfff"}}]), "expected values in range"),
        ('{"resourceSpans": ' + "9" * 5000 + "}", "not JSON"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(text: str, says: str) -> None:
    with pytest.raises(DecodeError, match=says):
        parse_json(text)


def test_bytes_that_are_no_text() -> None:
    with pytest.raises(DecodeError, match="not JSON"):
        parse_json(b'{"a": "\xff"}')


def test_a_byte_order_mark_is_no_error() -> None:
    assert parse_json(b"\xef\xbb\xbf{}") == ExportTraceServiceRequest()


def nested(depth: int) -> str:
    value: dict[str, Any] = {"stringValue": "x"}
    for _ in range(depth):
        value = {"kvlistValue": {"values": [{"key": "k", "value": value}]}}
    return spans(events=[{"attributes": [{"key": "k", "value": value}]}])


def test_whatever_nesting_is_taken_protobuf_can_parse_again() -> None:
    message = parse_json(nested(MAX_DEPTH))
    assert parse(message.SerializeToString()) == message
    with pytest.raises(DecodeError, match="levels of values"):
        parse_json(nested(MAX_DEPTH + 1))


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, nested(100)])
def test_nesting_without_end_is_an_error_not_a_crash(text: str) -> None:
    with pytest.raises(DecodeError):
        parse_json(text)


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False), st.text(max_size=8)
)
NAMES = ["resourceSpans", "scopeSpans", "spans", "events", "attributes", "key", "value", "name", "traceId", "kind"]
NAMES += ["stringValue", "intValue", "arrayValue", "kvlistValue", "values", "status", "code", "resource", "links"]
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(NAMES), documents, max_size=3))
def test_any_json_gives_a_message_or_a_decode_error(data: dict[str, Any]) -> None:
    try:
        message = parse_json(json.dumps(data))
    except DecodeError:
        return
    assert parse(message.SerializeToString()) == message


integers = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-(2**63) - 1, 2**63, 2**64, 10**30])
doubles = st.floats(allow_nan=False, allow_infinity=False)
raw_bytes = st.binary(max_size=9)
one_value = st.one_of(
    st.builds(lambda text: {"stringValue": text}, st.text(st.characters(exclude_categories=["Cs"]), max_size=5)),
    st.builds(lambda flag: {"boolValue": flag}, st.booleans()),
    st.builds(lambda whole: {"intValue": whole}, integers),
    st.builds(lambda whole: {"intValue": str(whole)}, integers),
    st.builds(lambda whole: {"intValue": float(whole)}, st.integers(-(2**53), 2**53)),
    st.builds(lambda value: {"doubleValue": value}, doubles | st.integers(-(2**70), 2**70)),
    st.builds(lambda value: {"doubleValue": str(value)}, doubles | st.integers(-(2**70), 2**70)),
    st.sampled_from(["NaN", "Infinity", "-Infinity", "nonsense", ""]).map(lambda word: {"doubleValue": word}),
    st.builds(lambda raw: {"bytesValue": b64encode(raw).decode()}, raw_bytes),
    st.builds(lambda raw: {"bytesValue": urlsafe_b64encode(raw).decode().rstrip("=")}, raw_bytes),
    st.sampled_from([1.5, "1.5", True, None, [], {}, "x"]).map(lambda wrong: {"intValue": wrong}),
    st.sampled_from([{}, {"stringValue": None}, {"stringValue": 3}, {"boolValue": "true"}, {"double_value": 0.5}]),
)
values = st.recursive(
    one_value,
    lambda inner: st.one_of(
        st.builds(lambda many: {"arrayValue": {"values": many}}, st.lists(inner, max_size=3)),
        st.builds(
            lambda many: {"kvlistValue": {"values": [{"key": f"k{at}", "value": one} for at, one in enumerate(many)]}},
            st.lists(inner, max_size=3),
        ),
    ),
    max_leaves=6,
)


@given(values)
def test_a_value_is_what_protobuf_makes_of_it(value: dict[str, Any]) -> None:
    try:
        theirs: AnyValue | None = json_format.Parse(json.dumps(value), AnyValue())
    except json_format.ParseError:
        theirs = None
    try:
        ours: AnyValue | None = only(spans(attributes=[{"key": "k", "value": value}])).attributes[0].value
    except DecodeError:
        ours = None
    assert (ours is None) == (theirs is None), (ours, theirs)
    if ours is not None and theirs is not None:  # by their bytes: NaN is not itself
        assert ours.SerializeToString(deterministic=True) == theirs.SerializeToString(deterministic=True)


def test_a_value_makes_no_table_of_its_own() -> None:
    """Or an array takes ten times as long as what is in it."""
    before = fields_of.cache_info().misses
    each: list[dict[str, Any]] = [{"doubleValue": 0.5}, {"boolValue": True}, {"bytesValue": "AA"}, {"arrayValue": {}}]
    for one in each:
        value = only(spans(attributes=[{"key": "k", "value": {"arrayValue": {"values": [one] * 1000}}}])).attributes[0]
        assert len(value.value.array_value.values) == 1000
    assert fields_of.cache_info().misses - before <= 2 * (MAX_DEPTH + 1)


SAMPLE = json.dumps(as_json(full_message()))


@given(st.lists(st.tuples(st.integers(0, len(SAMPLE) - 1), st.sampled_from('"{}[]:,0aeN\\\x00')), max_size=3))
def test_mutations_of_json_give_a_message_or_a_decode_error(changes: list[tuple[int, str]]) -> None:
    text = list(SAMPLE)
    for position, letter in changes:
        text[position] = letter
    try:
        message = parse_json("".join(text))
    except DecodeError:
        return
    assert parse(message.SerializeToString()) == message


def test_values_of_the_builders_cover_all_kinds() -> None:
    values: dict[str, Value] = {"s": "x", "i": 1, "f": 0.5, "b": True, "r": b"x", "l": ["a"]}
    kinds = {pair.value.WhichOneof("value") for pair in segment_span(None, None, attributes=values).attributes}
    assert len(kinds) == len(values)
    assert KeyValue(key="s", value=AnyValue(string_value="x")) in segment_span(attributes=values).attributes
