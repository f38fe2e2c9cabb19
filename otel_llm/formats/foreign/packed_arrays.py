"""Token times as one attribute: an array with an offset from the span's start for each output token.

Proposed in semantic-conventions-genai#75. The contents under these names differ from build to build: doubles, the same
as JSON in a string or in bytes, and arrays that are no offsets at all (durations, or one instant followed by distances
from another). An array that cannot be offsets in seconds is refused as a whole: half of it would be a wrong score.
"""

from __future__ import annotations

import json
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otel_llm import semconv
from otel_llm.core.limits import MAX_TIME_NS, MAX_TOKENS
from otel_llm.formats.foreign.chunk_events import SLACK_NS
from otel_llm.formats.spans.token_events import TokenEventError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

PACKED: Final = (semconv.PER_TOKEN_TIME_TO_GENERATE, semconv.PER_TOKEN_GENERATION_TIME)
"""The attributes with such an array; the first one present counts."""
_CHARS: Final = 32
"""Characters of JSON for one number, at most."""


def read_packed(
    attributes: Iterable[KeyValue], start_ns: int, end_ns: int, budget: int = MAX_TOKENS
) -> list[int] | None:
    """Return the token times of a span that holds them in an array, unix ns, in order; None if it holds none.

    Raises:
        TokenEventError: the array is none of numbers (`bad_token_array`), or they are no offsets in seconds:
            `token_array_not_finite`, `token_array_negative`, `token_array_falling`, `token_array_beyond_end` (of the
            span); or there are more than `budget` (`too_many_tokens`).
    """
    found = {attribute.key: attribute.value for attribute in attributes if attribute.key in PACKED}
    for key in PACKED:
        if key in found:
            offsets = _numbers(found[key], budget)
            if offsets:
                return _times(offsets, start_ns, end_ns)
    return None


def _numbers(value: AnyValue, budget: int) -> Sequence[float]:
    """Return the numbers of an array, or of one that is written as JSON."""
    match value.WhichOneof("value"):
        case "array_value":
            items = value.array_value.values
            if len(items) > budget:
                raise TokenEventError("too_many_tokens")
            numbers: list[Any] = [getattr(item, item.WhichOneof("value") or "string_value") for item in items]
        case "string_value":
            numbers = _from_json(value.string_value, budget)
        case "bytes_value":
            numbers = _from_json(value.bytes_value, budget)
        case _:
            raise TokenEventError("bad_token_array")
    if not {*map(type, numbers)} <= {float, int}:
        raise TokenEventError("bad_token_array")
    return numbers


def _from_json(text: str | bytes, budget: int) -> list[Any]:
    if len(text) > _CHARS * (budget + 1):
        raise TokenEventError("too_many_tokens")
    try:
        numbers = json.loads(text if isinstance(text, str) else text.decode())
    except (ValueError, RecursionError):
        raise TokenEventError("bad_token_array") from None
    if not isinstance(numbers, list):
        raise TokenEventError("bad_token_array")
    if len(numbers) > budget:
        raise TokenEventError("too_many_tokens")
    return numbers


def _times(offsets: Sequence[float], start_ns: int, end_ns: int) -> list[int]:
    latest_s = (min(end_ns + SLACK_NS, MAX_TIME_NS) - start_ns) / 1e9
    # An integer of any size has no place in float arithmetic; none that is larger than the bound is looked at closer.
    try:
        read = np.array(offsets, np.float64)
    except OverflowError:
        read = np.array([min(max(offset, -1), latest_s + 1e9) for offset in offsets], np.float64)
    before = np.concatenate(([0.0], read[:-1]))
    good = (before <= read) & (read <= latest_s)
    if good.all():
        times: list[int] = (start_ns + np.rint(read * 1e9).astype(np.int64)).tolist()
        return times
    first = int(np.argmin(good))
    offset = float(read[first])
    if not isfinite(offset):
        raise TokenEventError("token_array_not_finite")
    if offset < 0:
        raise TokenEventError("token_array_negative")
    raise TokenEventError("token_array_falling" if offset < before[first] else "token_array_beyond_end")
