"""A cache of parsed attributes by their bytes: most spans repeat the attributes of others."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from math import isfinite
from struct import Struct
from struct import error as StructError  # noqa: N812 - it is one
from typing import TYPE_CHECKING, Final

from google.protobuf.message import DecodeError as ProtobufDecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from otel_llm.formats.otlp.length_delimited import within_span
from otel_llm.formats.spans.attributes import AttributeLimits, fits, scalars

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from otel_llm.formats.records import Attributes, Scalar

_KEY, _VALUE, _TEXT, _INT, _DOUBLE = 0x0A, 0x12, 0x0A, 0x18, 0x21
_DOUBLE_FORM: Final = Struct("<d")
_MOST_DIGITS: Final = 9
"""Of an int that is not negative."""
_MOST_PARSED: Final = 4
"""Attributes of one span that protobuf parses one by one, if that is slow; the next span finds them cached."""
MOST_BYTES: Final = 2048
_REMEMBERED_BYTES: Final = 130
_REMEMBERED: Final = 4096
_REMEMBERED_SETS: Final = 1024

_Pair = tuple[str, "Scalar"] | tuple[()]
"""An attribute's key and value; empty for a value of another type."""


class AttributeCache:
    """A cache that reads attributes within limits. Bounded: a full cache is emptied, and refills with frequent ones."""

    def __init__(self, limits: AttributeLimits) -> None:
        self._limits = limits
        self._known: dict[bytes, _Pair] = {}
        self._sets: dict[bytes, Attributes] = {}

    def read_shared(self, raw: bytes, places: Sequence[tuple[int, int]]) -> Attributes | None:
        """Return the attributes as `read` does, and the same dictionary for the same bytes.

        The caller must not change the dictionary. It may cache results derived from the attributes by its `id`.
        """
        written = b"".join([raw[start:stop] for start, stop in places])
        known = self._sets.get(written)
        if known is None:
            known = self.read(raw, places)
            if known is not None and len(written) <= MOST_BYTES:
                if len(self._sets) >= _REMEMBERED_SETS:
                    self._sets.clear()
                self._sets[written] = known
        return known

    def read(self, raw: bytes, places: Iterable[tuple[int, int]]) -> Attributes | None:
        """Return the attributes at these positions of a message, counted from their tags.

        None if protobuf must read them with their span: something of them is refused or counted.
        """
        found: Attributes = {}
        parsed = 0
        for start, stop in places:
            attribute = raw[start:stop]
            pair = self._known.get(attribute)
            if pair is None:
                pair = self._simple(attribute)
                if pair is None and parsed < _MOST_PARSED:
                    parsed += 1
                    pair = self._parsed(attribute)
                if pair is None:
                    return None
                self._remember(attribute, pair)
            if len(found) >= self._limits.count:
                return None
            if pair:
                found[pair[0]] = pair[1]
        return found

    def _simple(self, attribute: bytes) -> _Pair | None:
        """Return the pair of a short text or a number; None for any other attribute, and for an odd one."""
        try:
            pair = _read_simple(attribute)
        except (IndexError, StructError, UnicodeDecodeError):
            return None
        if pair is None:
            return None
        key, value = pair
        odd = len(value) > self._limits.value_chars if isinstance(value, str) else not isfinite(value)
        return None if odd or not fits(key, value) else pair

    def _parsed(self, attribute: bytes) -> _Pair | None:
        """Return the pair as protobuf reads it, None if something of it is odd."""
        if len(attribute) > MOST_BYTES:
            return None
        try:
            message = ExportTraceServiceRequest.FromString(within_span(attribute))
        except ProtobufDecodeError:
            return None
        odd: Counter[str] = Counter()
        kept = scalars(message.resource_spans[0].scope_spans[0].spans[0].attributes, odd, self._limits)
        return None if odd else next(iter(kept.items()), ())

    def _remember(self, attribute: bytes, pair: _Pair) -> None:
        if len(attribute) > _REMEMBERED_BYTES:
            return
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        self._known[attribute] = pair


@lru_cache(maxsize=8)
def attribute_cache(limits: AttributeLimits) -> AttributeCache:
    """Return the cache of attributes within these limits."""
    return AttributeCache(limits)


def _read_simple(attribute: bytes) -> tuple[str, Scalar] | None:
    """Return the key and the value of an attribute that is a short text or a number; None for any other."""
    # Its tag and length, those of the key, the key, those of the value, the value: its tag and its content.
    if attribute[1] > 127 or attribute[2] != _KEY:
        return None
    at = 4 + attribute[3]
    size = attribute[at + 1]
    begin = at + 3
    if attribute[at] != _VALUE or at + 2 + size != len(attribute):
        return None
    kind = attribute[at + 2]
    value: Scalar
    if kind == _TEXT:
        if attribute[begin] != size - 2:
            return None
        value = attribute[begin + 1 :].decode()
    elif kind == _INT:
        digits = attribute[begin:]
        if digits[-1] > 127 or len(digits) > _MOST_DIGITS or min(digits[:-1], default=128) < 128:
            return None
        value = 0
        for index, digit in enumerate(digits):
            value |= (digit & 127) << 7 * index
    elif kind == _DOUBLE and size == 1 + _DOUBLE_FORM.size:
        (value,) = _DOUBLE_FORM.unpack_from(attribute, begin)
    else:
        return None
    return attribute[4:at].decode(), value
