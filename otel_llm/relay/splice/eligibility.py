"""The requests that another backend can continue token for token, as far as the request itself shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from otel_llm.relay.splice.dialect import dialect_of
from otel_llm.relay.splice.keys import OPENAI_KEYS
from otel_llm.relay.splice.large_body import UNREAD

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_llm.relay.splice.dialect import Dialect
    from otel_llm.relay.splice.keys import Key
    from otel_llm.relay.splice.request import OwnedRequest

Way = Literal["completions", "chat"]
"""The endpoint by which a reply is continued: its ids go to `/v1/completions`, or a chat's own request is sent again
with them, so that the parsers of reasoning and tools, and all that shapes a chunk, are the engine's."""

_STREAM_OPTIONS: Final = frozenset({"include_usage", "continuous_usage_stats", "include_obfuscation"})
"""The last is OpenAI's padding of chunks, which the engines do not make."""
_NUMBERS: Final = (int, float)


def static_reason(request: OwnedRequest, kind: str, way: Way = "completions") -> str | None:
    """Return why a request cannot be continued elsewhere by a way, None if nothing in it prevents that.

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
    if way == "completions":
        return _key_reason(request, dialect.keys) or _tools_reason(values)
    if request.endpoint != "chat" or not dialect.native_keys:
        return f"a backend of kind {kind} continues no {request.operation} by its own endpoint"
    fewest = values.get("min_tokens")
    if fewest is not None and type(fewest) is not int:
        return "'min_tokens' is not an integer"
    return _key_reason(request, dialect.native_keys) or _native_tools_reason(request)


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


def may_call_tools(request: OwnedRequest) -> bool:
    """Return whether a parser of tool calls may be at work on the reply."""
    return _tools_reason(request.values) is not None


def _native_tools_reason(request: OwnedRequest) -> str | None:
    """Return why a chat with tools is not continued: a grammar that has begun has a state."""
    values = request.values
    choice = values.get("tool_choice")
    if choice not in (None, "auto", "none"):
        return "'tool_choice' does not carry over"
    tools = values.get("tools")
    if choice == "none" or not tools:
        return None
    if tools is UNREAD:
        text = request.raw["tools"]
        strict = '"strict"' in text or "\\u" in text
    else:
        strict = any(map(_is_strict, tools if isinstance(tools, list) else ()))
    return "a strict tool" if strict else None


def _is_strict(tool: object) -> bool:
    if not isinstance(tool, dict):
        return False
    function = tool.get("function")
    return bool(tool.get("strict") or (isinstance(function, dict) and function.get("strict")))


def _is_number(value: object) -> bool:
    return isinstance(value, _NUMBERS) and not isinstance(value, bool)


def _equal(value: object, neutral: object) -> bool:
    if _is_number(value) or _is_number(neutral):  # 0 and 0.0 are equal, 0 and false are not
        return _is_number(value) and _is_number(neutral) and value == neutral
    return type(value) is type(neutral) and value == neutral
