"""Tags of the fields of OTLP traces that the kernels read or count: field number and wire type, message by message.

A name that two messages share has the same number in both: the names are those of opentelemetry-proto 1.x.
"""

from __future__ import annotations

from typing import Final

from otel_llm.core.scanning.protobuf import FIXED64, LENGTH, VARINT

# ExportTraceServiceRequest
RESOURCE_SPANS: Final = 1 << 3 | LENGTH
# ResourceSpans
RESOURCE: Final = 1 << 3 | LENGTH
SCOPE_SPANS: Final = 2 << 3 | LENGTH
# Resource
RESOURCE_ATTRIBUTE: Final = 1 << 3 | LENGTH
ENTITY: Final = 3 << 3 | LENGTH
# EntityRef
ENTITY_ID_KEY: Final = 3 << 3 | LENGTH
ENTITY_DESCRIPTION_KEY: Final = 4 << 3 | LENGTH
# ScopeSpans
SCOPE: Final = 1 << 3 | LENGTH
SPAN: Final = 2 << 3 | LENGTH
# InstrumentationScope
SCOPE_ATTRIBUTE: Final = 3 << 3 | LENGTH
# ResourceSpans and ScopeSpans
SCHEMA_URL: Final = 3 << 3 | LENGTH
# Span
TRACE_ID: Final = 1 << 3 | LENGTH
SPAN_ID: Final = 2 << 3 | LENGTH
TRACE_STATE: Final = 3 << 3 | LENGTH
PARENT_ID: Final = 4 << 3 | LENGTH
NAME: Final = 5 << 3 | LENGTH
SPAN_KIND: Final = 6 << 3 | VARINT
START: Final = 7 << 3 | FIXED64
END: Final = 8 << 3 | FIXED64
ATTRIBUTE: Final = 9 << 3 | LENGTH
EVENT: Final = 11 << 3 | LENGTH
DROPPED_EVENTS: Final = 12 << 3 | VARINT
LINK: Final = 13 << 3 | LENGTH
STATUS: Final = 15 << 3 | LENGTH
# Event
EVENT_TIME: Final = 1 << 3 | FIXED64
EVENT_NAME: Final = 2 << 3 | LENGTH
EVENT_ATTRIBUTE: Final = 3 << 3 | LENGTH
# Link
LINK_ATTRIBUTE: Final = 4 << 3 | LENGTH
# KeyValue
KEY: Final = 1 << 3 | LENGTH
VALUE: Final = 2 << 3 | LENGTH
# AnyValue
TEXT_VALUE: Final = 1 << 3 | LENGTH
INT_VALUE: Final = 3 << 3 | VARINT
LIST_VALUE: Final = 5 << 3 | LENGTH
MAP_VALUE: Final = 6 << 3 | LENGTH
# ArrayValue
ITEM: Final = 1 << 3 | LENGTH
# KeyValueList
PAIR: Final = 1 << 3 | LENGTH
# Status
STATUS_MESSAGE: Final = 2 << 3 | LENGTH
STATUS_CODE: Final = 3 << 3 | VARINT
