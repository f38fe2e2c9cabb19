"""Parts are counted as protobuf makes them, within the message; what may be one is what its descriptors say."""

from __future__ import annotations

from random import Random

import numpy as np
import numpy.typing as npt
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import (
    AnyValue,
    ArrayValue,
    EntityRef,
    InstrumentationScope,
    KeyValue,
    KeyValueList,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status
from support.collector.message_mutations import field_of
from support.core.dense_exports import TINY, tiny
from support.core.guarded import GuardedMemory
from support.core.scan_messages import mutation, random_message
from support.examples import SEED, examples

from otel_llm.core.scanning import tags
from otel_llm.core.scanning.parts import CHILDREN, EXPORT, MOST_DEPTH, SMALL, count_parts
from otel_llm.core.scanning.protobuf import FIXED64, LENGTH, VARINT
from otel_llm.core.scanning.scan import STATUS_ERROR

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]


ALL = np.where(SMALL > 0, 1 << 40, 0)
"""However large they are."""
ONE = np.ones_like(SMALL)


def cost_of(data: Bytes, small: Ints = ALL, cost: Ints = ONE, most: int = 1 << 40) -> int:
    return count_parts(data, small, cost, np.empty((MOST_DEPTH, 2), np.int64), most)


def counted(data: Bytes) -> int:
    """Return how many parts there are: empty ones cost twice as much as the others."""
    return cost_of(data) - cost_of(data, small=np.where(SMALL > 0, 1, 0)) // 2


def parts_of(message: Message) -> int:
    """Return how many repeated messages and texts are in a message, at any depth."""
    found = 0
    for field, value in message.ListFields():
        if field.is_repeated:
            found += len(value)
        for one in value if field.is_repeated else [value]:
            if isinstance(one, Message):
                found += parts_of(one)
    return found


def test_as_many_are_counted_as_protobuf_makes() -> None:
    random = Random(SEED)
    compared = alike = 0
    with GuardedMemory(1 << 16) as memory:
        for _ in range(examples(150)):
            whole, other = random_message(random), random_message(random)
            small = tiny(
                random.choice(list(TINY)), random.randint(1, 300), random.choice((b"", b"\x18\x01", b"\x12\x00"))
            )
            for raw in (
                whole,
                small,
                *(mutation(whole, other, random) for _ in range(10)),
                mutation(small, whole, random),
            ):
                if len(raw) > 1 << 16:
                    continue
                found = counted(memory.put(raw))
                try:
                    expected = parts_of(ExportTraceServiceRequest.FromString(raw))
                except DecodeError:
                    continue
                # A value that is set twice was made twice, and is there once.
                assert found >= expected, raw.hex()
                assert found == expected or raw != whole
                compared += 1
                alike += found == expected
    assert compared > examples(300)
    assert alike > 0.98 * compared


def test_no_more_are_counted_than_are_asked_for() -> None:
    data = np.frombuffer(b"\x0a\x08\x12\x06" + b"\x12\x00" * 3, np.uint8)
    assert [cost_of(data, most=most) for most in range(10)] == [1, 2, 4, 4, 6, 6, 8, 8, 8, 8]


def test_no_deeper_than_protobuf_reads() -> None:
    value = b""
    for _ in range(200):
        value = field_of(5, LENGTH, field_of(1, LENGTH, value).raw).raw
    raw = field_of(1, LENGTH, field_of(1, LENGTH, field_of(1, LENGTH, field_of(2, LENGTH, value).raw).raw).raw).raw
    assert 50 < counted(np.frombuffer(raw, np.uint8)) < 70


# What opentelemetry-proto says.

EXPORT_FIELDS = ExportTraceServiceRequest.DESCRIPTOR


def test_every_repeated_field_of_the_protocol_is_counted() -> None:
    kinds: dict[str, set[int]] = {}
    waiting = [(EXPORT_FIELDS, EXPORT)]
    while waiting:
        message, kind = waiting.pop()
        if kind in kinds.setdefault(message.full_name, set()):
            continue
        kinds[message.full_name].add(kind)
        children = CHILDREN.get(kind, {})
        for field in message.fields:
            if field.message_type is None:
                if field.is_repeated:
                    assert SMALL[children[field.number << 3 | LENGTH]] > 0, field.full_name
                continue
            held = _holds_repeated(field.message_type, frozenset())
            if not field.is_repeated and not held:
                assert field.number << 3 | LENGTH not in children
                continue
            child = children[field.number << 3 | LENGTH]
            assert (SMALL[child] > 0) == field.is_repeated, field.full_name
            waiting.append((field.message_type, child))
    assert set(CHILDREN) <= set().union(*kinds.values())


def _holds_repeated(message: Descriptor, above: frozenset[str]) -> bool:
    if message.full_name in above:
        return False
    return any(
        field.is_repeated
        or (field.message_type is not None and _holds_repeated(field.message_type, above | {message.full_name}))
        for field in message.fields
    )


FIELDS: dict[type[Message], dict[str, str]] = {
    ExportTraceServiceRequest: {"RESOURCE_SPANS": "resource_spans"},
    ResourceSpans: {"RESOURCE": "resource", "SCOPE_SPANS": "scope_spans", "SCHEMA_URL": "schema_url"},
    Resource: {"RESOURCE_ATTRIBUTE": "attributes", "ENTITY": "entity_refs"},
    EntityRef: {"ENTITY_ID_KEY": "id_keys", "ENTITY_DESCRIPTION_KEY": "description_keys"},
    InstrumentationScope: {"SCOPE_ATTRIBUTE": "attributes"},
    Span.Link: {"LINK_ATTRIBUTE": "attributes"},
    ArrayValue: {"ITEM": "values"},
    KeyValueList: {"PAIR": "values"},
    ScopeSpans: {"SCOPE": "scope", "SPAN": "spans", "SCHEMA_URL": "schema_url"},
    Span: {
        "TRACE_ID": "trace_id",
        "SPAN_ID": "span_id",
        "TRACE_STATE": "trace_state",
        "PARENT_ID": "parent_span_id",
        "NAME": "name",
        "SPAN_KIND": "kind",
        "START": "start_time_unix_nano",
        "END": "end_time_unix_nano",
        "ATTRIBUTE": "attributes",
        "EVENT": "events",
        "DROPPED_EVENTS": "dropped_events_count",
        "LINK": "links",
        "STATUS": "status",
    },
    Span.Event: {"EVENT_TIME": "time_unix_nano", "EVENT_NAME": "name", "EVENT_ATTRIBUTE": "attributes"},
    KeyValue: {"KEY": "key", "VALUE": "value"},
    AnyValue: {
        "TEXT_VALUE": "string_value",
        "INT_VALUE": "int_value",
        "LIST_VALUE": "array_value",
        "MAP_VALUE": "kvlist_value",
    },
    Status: {"STATUS_MESSAGE": "message", "STATUS_CODE": "code"},
}
WIRE_TYPES = {
    FieldDescriptor.TYPE_FIXED64: FIXED64,
    FieldDescriptor.TYPE_STRING: LENGTH,
    FieldDescriptor.TYPE_BYTES: LENGTH,
    FieldDescriptor.TYPE_MESSAGE: LENGTH,
    FieldDescriptor.TYPE_ENUM: VARINT,
    FieldDescriptor.TYPE_INT64: VARINT,
    FieldDescriptor.TYPE_UINT32: VARINT,
}


def test_the_tags_that_the_kernels_read_are_those_of_the_protocol() -> None:
    for message, fields in FIELDS.items():
        for name, field in fields.items():
            described = message.DESCRIPTOR.fields_by_name[field]
            assert getattr(tags, name) == described.number << 3 | WIRE_TYPES[described.type], (message, name)
    ours = {name for name in vars(tags) if name.isupper()} - {"FIXED64", "LENGTH", "VARINT"}
    assert ours == {name for fields in FIELDS.values() for name in fields}
    assert Status.STATUS_CODE_ERROR == STATUS_ERROR
