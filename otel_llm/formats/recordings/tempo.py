"""The answers of Tempo's API, and of Jaeger's `/api/v3`, turned into OTLP.

`/api/traces/ID` answers `{"batches": [...]}` (older ones with `instrumentationLibrarySpans`), `/api/v2/traces/ID`
`{"trace": {"resourceSpans": [...]}}`; ids are base64, as protobuf's own JSON mapping writes bytes. Asked for
`application/protobuf` the first is an export request byte for byte, the second has it in its field 1 (tempo.proto,
`Trace` and `TraceByIDResponse`). Jaeger's `/api/v3` answers one or more `{"result": {"resourceSpans": [...]}}`.
"""

from __future__ import annotations

from base64 import b64decode
from typing import Any, Final

_IDS: Final = {"traceId": 16, "spanId": 8, "parentSpanId": 8, "trace_id": 16, "span_id": 8, "parent_span_id": 8}
WRAPPERS: Final = ("trace", "result")
"""The members of an answer that hold its export request."""
_TRACE_TAG: Final = 0x0A
_SCOPE_SPANS_TAG: Final = 0x12


def otlp_of(data: dict[str, Any]) -> dict[str, Any]:
    """Return the export request in an answer of Tempo or Jaeger; any other object as it is."""
    for wrapper in WRAPPERS:
        inner = data.get(wrapper)
        if isinstance(inner, dict) and "resourceSpans" not in data:
            data = inner
    if "batches" in data and "resourceSpans" not in data:
        data = {**data, "resourceSpans": data["batches"]}
    for resource in _objects(data.get("resourceSpans")):
        if "instrumentationLibrarySpans" in resource:  # before OTLP 0.19
            resource.setdefault("scopeSpans", resource.pop("instrumentationLibrarySpans"))
    return data


def hex_ids(data: dict[str, Any]) -> bool:
    """Write the ids of an export request that are base64 as hex, in place; return whether there were any."""
    found = False
    for resource in _objects(data.get("resourceSpans") or data.get("resource_spans")):
        for scope in _objects(resource.get("scopeSpans") or resource.get("scope_spans")):
            for span in _objects(scope.get("spans")):
                for one in (span, *_objects(span.get("links"))):
                    for name, size in _IDS.items():
                        made = _hex(one.get(name), size)
                        if made is not None:
                            one[name] = made
                            found = True
    return found


def unwrapped(data: bytes) -> bytes:
    """Return the export request in a `TraceByIDResponse`; any other message unchanged.

    Both begin with field 1. In an export request it is `ResourceSpans`, whose field 2 are its scopes; here it is a
    `Trace`, which has fields 1 only, each a `ResourceSpans`.
    """
    start, end = _field(data, 0, len(data))
    if end == 0:
        return data
    position, stop = start, min(end, len(data))
    deep = False
    while position < stop:
        if data[position] != _TRACE_TAG:
            return data
        first, position = _field(data, position, stop)
        if position == 0:
            return data
        deep = deep or _has_scopes(data, first, min(position, stop))
    return data[start:end] if deep else data


def _has_scopes(data: bytes, position: int, stop: int) -> bool:
    while position < stop and data[position] in (_TRACE_TAG, _SCOPE_SPANS_TAG):
        if data[position] == _SCOPE_SPANS_TAG:
            return True
        _, position = _field(data, position, stop)
        if position == 0:
            return False
    return False


def _field(data: bytes, position: int, stop: int) -> tuple[int, int]:
    """Return the begin and the end of the body of the length-delimited field at this position; 0 if there is none."""
    length = 0
    for size, byte in enumerate(data[position + 1 : min(position + 6, stop)]):
        length |= (byte & 127) << 7 * size
        if byte < 128:
            return position + 2 + size, position + 2 + size + length
    return 0, 0


def _hex(text: Any, size: int) -> str | None:
    if not isinstance(text, str) or not text.endswith("="):
        return None
    try:
        made = b64decode(text, validate=True)
    except ValueError:
        return None
    return made.hex() if len(made) == size else None


def _objects(data: Any) -> list[dict[str, Any]]:
    return [one for one in data if isinstance(one, dict)] if isinstance(data, list) else []
