"""Attributes as plain values: which are kept of a span, and the required types of known ones.

Attributes that we act on are checked here, once: after this module a token count is a count, an outcome an outcome.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

from otel_llm import semconv
from otel_llm.core.limits import MAX_COUNT, MAX_TIME_NS
from otel_llm.slo.metrics import IN_ATTRIBUTES

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterable, Mapping

    from opentelemetry.proto.common.v1.common_pb2 import ArrayValue, KeyValue

    from otel_llm.formats.records import Attributes, Scalar

MAX_ATTRIBUTES: Final = 128
"""Attributes kept of a span by default; the SDK's own limit."""
MAX_KEY_CHARS: Final = 256
MAX_VALUE_CHARS: Final = 1024
"""A longer string is content (prompts are attributes too), not identity: left out, never cut."""


@dataclass(frozen=True, slots=True)
class AttributeLimits:
    """The limits of a span's attributes: `count` of them, and strings of at most `value_chars` characters."""

    count: int = MAX_ATTRIBUTES
    value_chars: int = MAX_VALUE_CHARS

    def __post_init__(self) -> None:
        if min(self.count, self.value_chars) < 1:
            raise ValueError(f"limits of attributes must be 1 or more, not {self.count} and {self.value_chars}")


DEFAULT_LIMITS: Final = AttributeLimits()


@dataclass(frozen=True, slots=True)
class IntakeLimits:
    """The limits of one request and of one span."""

    segments_per_request: int = 20_000
    attributes: AttributeLimits = DEFAULT_LIMITS


ENGINE_LATENCIES: Final = (
    semconv.GEN_AI_LATENCY_TTFT,
    semconv.GEN_AI_LATENCY_E2E,
    semconv.GEN_AI_LATENCY_QUEUE,
    semconv.GEN_AI_LATENCY_PREFILL,
)
"""Attributes that serving engines put on their own spans of a request."""
_COUNTS: Final = frozenset(
    {
        semconv.TOKENS,
        semconv.SEGMENTS,
        semconv.DROPPED_SEGMENTS,
        semconv.GEN_AI_USAGE_INPUT_TOKENS,
        semconv.GEN_AI_USAGE_PROMPT_TOKENS,
        *semconv.OUTPUT_TOKENS,
        *semconv.REASONING_TOKENS,
    }
)
_STRINGS: Final = frozenset(
    {
        semconv.SLO_CLASS,
        semconv.INSTANCE,
        semconv.GEN_AI_OPERATION_NAME,
        semconv.GEN_AI_PROVIDER_NAME,
        semconv.GEN_AI_SYSTEM,
        semconv.GEN_AI_REQUEST_MODEL,
        semconv.GEN_AI_RESPONSE_MODEL,
        semconv.SERVER_ADDRESS,
        semconv.ERROR_TYPE,
    }
)
_CHOICES: Final = {
    semconv.OUTCOME: semconv.OUTCOMES,
    semconv.TOKEN_BASIS: semconv.TOKEN_BASES,
    semconv.MEASURED_AT: semconv.MEASURED_AT_VALUES,
}
STATED_TIMES: Final = frozenset({*ENGINE_LATENCIES, *semconv.FIRST_CHUNK_UNITS})
"""Attributes with a time of the request, in seconds."""
_WHOLE: Final = _COUNTS | {
    semconv.SEGMENT_SEQ,
    semconv.SEGMENT_FIRST_TOKEN,
    semconv.SEGMENT_LAST_BYTE,
    semconv.CHOICE,
    semconv.TOKEN_COUNT,
    semconv.GEN_AI_REQUEST_CHOICE_COUNT,
    semconv.OPENINFERENCE_PROMPT_TOKENS,
}
ARRAYS: Final = frozenset({semconv.GEN_AI_RESPONSE_FINISH_REASONS})
"""Attributes that are arrays of text, which databases keep as JSON: their length is the number of replies."""
MAX_ITEMS: Final = 128
"""The items of such an array that are read: the most choices of a request."""
MAX_ITEM_CHARS: Final = 64
"""The characters of an item that are kept: a reason is a word."""
_FLAGS: Final = frozenset({semconv.EXACT_RESUME, semconv.TOKEN_RATIO_LEARNED, semconv.GEN_AI_REQUEST_STREAM})


_SCALARS: Final = frozenset({"string_value", "int_value", "bool_value", "double_value"})


def _is_count(value: Scalar) -> bool:
    return type(value) is int and 0 <= value <= MAX_COUNT


def _is_time(value: Scalar) -> bool:
    return type(value) is int and 0 <= value <= MAX_TIME_NS


def _is_name(value: Scalar) -> bool:
    return type(value) is str and value != ""


def _is_duration(value: Scalar) -> bool:
    return type(value) in (float, int) and 0 <= value <= MAX_COUNT  # type: ignore[operator]


def _is_flag(value: Scalar) -> bool:
    return type(value) is bool


_CHECKS: Final[dict[str, Callable[[Scalar], bool]]] = {
    **dict.fromkeys(_COUNTS, _is_count),
    **dict.fromkeys(_STRINGS, _is_name),
    **{key: known.__contains__ for key, known in _CHOICES.items()},
    **dict.fromkeys(STATED_TIMES, _is_duration),
    semconv.EXACT_RESUME: _is_flag,
    semconv.TOKEN_RATIO_LEARNED: _is_flag,
    semconv.SEGMENT_LAST_BYTE: _is_time,
}
"""The check of each attribute that we act on."""


def scalars(
    attributes: Iterable[KeyValue], anomalies: Counter[str], limits: AttributeLimits = DEFAULT_LIMITS
) -> Attributes:
    """Return the attributes that are single values and fit; maps and bytes are left out.

    An array that ARRAYS names becomes its JSON; other arrays are left out.
    """
    kept: Attributes = {}
    for attribute in attributes:
        key, value = attribute.key, attribute.value
        # A field that is not set reads as empty or 0: the two most frequent kinds need no further check.
        text = value.string_value
        scalar: Scalar = text
        if text:
            if len(text) > limits.value_chars:
                anomalies["attribute_too_long"] += 1
                continue
        else:
            scalar = value.int_value
            if not scalar:
                kind = value.WhichOneof("value")
                if kind == "array_value" and key in ARRAYS:
                    scalar = _json_of(value.array_value)
                elif kind not in _SCALARS:
                    continue
                else:
                    scalar = getattr(value, kind)
                if kind == "double_value" and not isfinite(value.double_value):
                    anomalies["attribute_not_finite"] += 1
                    continue
        check = _CHECKS.get(key)
        if check is not None and not check(scalar):
            anomalies["attribute_unusable"] += 1
        elif len(kept) == limits.count or len(key) > MAX_KEY_CHARS:
            anomalies["attribute_beyond_limit"] += 1
        else:
            kept[key] = scalar
    return kept


def _json_of(array: ArrayValue) -> str:
    return json.dumps([one.string_value[:MAX_ITEM_CHARS] for one in array.values[:MAX_ITEMS]])


def fits(key: str, value: Scalar) -> bool:
    """Tell whether a value passes the check of its attribute; attributes without a check pass."""
    check = _CHECKS.get(key)
    return check is None or check(value)


def text_of(attributes: Attributes, key: str) -> str | None:
    """Return the text of an attribute, None if it is missing, empty or no text."""
    value = attributes.get(key)
    return value if isinstance(value, str) and value else None


def count_of(attributes: Attributes, key: str) -> int | None:
    """Return the count in an attribute, None if it is missing or no count."""
    value = attributes.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _first_count(attributes: Attributes, names: tuple[str, ...]) -> int | None:
    for name in names:
        if name in attributes and (count := count_of(attributes, name)) is not None:
            return count
    return None


def stated_total_of(attributes: Attributes) -> tuple[int | None, int | None]:
    """Return the tokens that a reply stated of itself: all of them, and the part that is reasoning."""
    return _first_count(attributes, semconv.OUTPUT_TOKENS), _first_count(attributes, semconv.REASONING_TOKENS)


def seconds_of(attributes: Attributes, key: str) -> float | None:
    """Return the duration in an attribute, seconds; None if it is missing or no duration."""
    value = attributes.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value < float("inf") else None


def stated_columns(attributes: Attributes) -> dict[str, Any]:
    """Return the columns of a row that an attribute states, None if it is missing or of another type."""
    return {name: _READ[kind](attributes, key) for name, (key, kind) in IN_ATTRIBUTES.items()}


_READ: Final[Mapping[str, Callable[[Attributes, str], Scalar | None]]] = {
    "text": text_of,
    "integer": count_of,
    "real": seconds_of,
}
"""The parser of an attribute by the type of its column: text, a count, a duration."""


def model_of(attributes: Attributes) -> str | None:
    """Return the requested model, else the responding one."""
    return text_of(attributes, semconv.GEN_AI_REQUEST_MODEL) or text_of(attributes, semconv.GEN_AI_RESPONSE_MODEL)


def typed(key: str, text: str) -> str | int | float | bool | list[str]:
    """Return an attribute that a database keeps as text in the type of its name; an unknown one unchanged."""
    try:
        if key in ARRAYS:
            words = json.loads(text) if len(text) <= MAX_VALUE_CHARS else None
            return words if isinstance(words, list) and all(isinstance(word, str) for word in words) else text
        if key in _WHOLE:
            return int(text) if len(text) <= 20 else text
        if key in STATED_TIMES:
            return float(text)
    except (ValueError, RecursionError):
        return text
    if key in _FLAGS and text in ("true", "false"):
        return text == "true"
    return text
