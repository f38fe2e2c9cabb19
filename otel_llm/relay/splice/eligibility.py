"""The requests that another backend can continue token for token, as far as the request itself shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_llm.relay.splice.dialect import dialect_of
from otel_llm.relay.splice.keys import OPENAI_KEYS
from otel_llm.relay.splice.large_body import UNREAD

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_llm.relay.splice.dialect import Dialect
    from otel_llm.relay.splice.keys import Key
    from otel_llm.relay.splice.request import OwnedRequest

_STREAM_OPTIONS: Final = frozenset({"include_usage", "continuous_usage_stats", "include_obfuscation"})
"""The last is OpenAI's padding of chunks, which the engines do not make."""
_NUMBERS: Final = (int, float)


def static_reason(request: OwnedRequest, kind: str) -> str | None:
    """Return why a request cannot be continued elsewhere, None if nothing in it prevents that.

    The first condition that fails, in the order of the contract: kind, choices, sampling, keys, tools. Whether another
    backend exists is checked elsewhere.
    """
    dialect = dialect_of(kind)
    if request.endpoint not in dialect.ids_of:
        when = f" while a {request.operation} streams" if dialect.ids_of else ""
        return f"a backend of kind {kind} returns no token ids{when}"
    if request.choices != 1:
        return f"{request.choices} choices"
    values = request.values
    if values.get("seed") is not None and not is_greedy(values):
        return "sampled with a seed"
    return _key_reason(request, dialect.keys) or _tools_reason(values)


def is_greedy(values: Mapping[str, Any]) -> bool:
    """Return whether a request states temperature 0."""
    temperature = values.get("temperature")
    return _is_number(temperature) and temperature == 0


def carried_keys(request: OwnedRequest, dialect: Dialect) -> list[str]:
    """Return the keys of an eligible request that are sent again unchanged, in their order."""
    values, keys = request.values, dialect.keys
    found = [(name, _key(name, keys)) for name in values if values[name] is not None]
    return [name for name, key in found if key is not None and (key.how == "carry" or key.sent)]


def _key(name: str, keys: Mapping[str, Key]) -> Key | None:
    """Return what is known of a key: as the engine reads it, or else as OpenAI's API does."""
    return keys.get(name) or OPENAI_KEYS.get(name)


def _key_reason(request: OwnedRequest, keys: Mapping[str, Key]) -> str | None:
    if request.multimodal:
        return "multimodal content"
    for name, value in request.values.items():
        if value is None:
            continue
        key = _key(name, keys)
        if key is None or request.endpoint not in key.endpoints:
            return f"{name[:64]!r} is not known to carry over"
        if key.how == "neutral" and not any(_equal(value, neutral) for neutral in key.neutral):
            return f"{name!r} does not carry over"
    options = request.values.get("stream_options")
    if options is UNREAD:
        return "'stream_options' is too large to be read"
    if isinstance(options, dict):
        for name, value in options.items():
            if name not in _STREAM_OPTIONS:
                return f"'stream_options.{name[:64]}' is not known to carry over"
            if value is not None and type(value) is not bool:  # engines take words for booleans
                return f"'stream_options.{name}' is not a boolean"
    for name in ("max_completion_tokens", "max_tokens"):
        value = request.values.get(name)
        if value is not None and type(value) is not int:
            return f"{name!r} is not an integer"
    return None


def _tools_reason(values: Mapping[str, Any]) -> str | None:
    choice = values.get("tool_choice")
    if choice == "none" or (choice is None and not values.get("tools")):
        return None
    return "tools"


def _is_number(value: object) -> bool:
    return isinstance(value, _NUMBERS) and not isinstance(value, bool)


def _equal(value: object, neutral: object) -> bool:
    if _is_number(value) or _is_number(neutral):  # 0 and 0.0 are equal, 0 and false are not
        return _is_number(value) and _is_number(neutral) and value == neutral
    return type(value) is type(neutral) and value == neutral
