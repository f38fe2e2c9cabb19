"""Parse the data of an event of a reply: the chunk's choices with their ids, text and finish; usage; an error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, TypeGuard

from otel_llm.instrumentation.segments.statements import FAILURES, UNKNOWN, reason_of
from otel_llm.relay.splice.large_body import LARGE_BYTES, PromptIds, cut_prompt_ids
from otel_llm.relay.splice.members import DECODER
from otel_llm.relay.splice.stated_error import choice_error, stated_error

if TYPE_CHECKING:
    from otel_llm.relay.splice.stated_error import StatedError

Kind = Literal["content", "reasoning", "tool"]

DONE: Final = b"[DONE]"
MAX_CHOICES: Final = 128
"""The most choices that the API allows."""

_REASONING: Final = ("reasoning", "reasoning_content")
_PLAIN_DELTA: Final = frozenset({"content", "role"})


class Choice:
    """One choice of a chunk.

    `stated`: its JSON. `ids`: None if the chunk has none. `kind`: of its text, None if it has none. `finish`: the
    reason why it is complete; `aborted`: one for which it is not. `plain`: it has nothing but a text, reasoning and a
    role. `bare`: its delta is empty.
    """

    __slots__ = (
        "aborted", "bare", "finish", "ids", "index", "kind", "plain", "reasoning", "role", "stated", "stop_reason",
        "text",
    )  # fmt: skip

    def __init__(self, stated: dict[str, Any]) -> None:
        self.stated = stated
        self.index = 0
        self.ids: list[int] | None = None
        self.text = ""
        self.reasoning = ""
        self.kind: Kind | None = None
        self.role = False
        self.finish: str | None = None
        self.aborted: str | None = None
        self.stop_reason: str | int | None = None
        self.plain = True
        self.bare = False


class Chunk:
    """The JSON of an event. `odd`: why a stream with this chunk cannot be resumed, None if it can.

    `prompt_ids`: those of a large chunk were cut out of it before it was parsed; `rest` is its JSON without them.
    """

    __slots__ = ("choices", "error", "odd", "prompt_ids", "rest", "usage", "value")

    def __init__(self, value: dict[str, Any], prompt_ids: PromptIds | None = None, rest: bytes | None = None) -> None:
        self.value = value
        self.choices: list[Choice] = []
        self.prompt_ids = prompt_ids
        self.rest = rest
        self.usage: dict[str, Any] | None = None
        self.error: StatedError | None = None
        self.odd: str | None = None


def parse(data: bytes) -> Chunk | None:
    """Return the chunk in the data of an event, None if that is no JSON object. Large ones: in a thread."""
    rest, cut = (data, None) if len(data) <= LARGE_BYTES else cut_prompt_ids(data)
    try:
        value = DECODER.decode(rest.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    if type(value) is not dict:
        return None
    chunk = Chunk(value, cut, None if cut is None else rest)
    get = value.get
    usage = get("usage")
    if type(usage) is dict:
        chunk.usage = usage
    chunk.error = stated_error(value)
    prompt_ids = get("prompt_token_ids")
    if prompt_ids is not None:
        _take_prompt_ids(chunk, prompt_ids)
    choices = get("choices")
    if type(choices) is list:
        outer = get("token_ids") if len(choices) == 1 else None
        for stated in choices:
            if type(stated) is dict:
                chunk.choices.append(_choice(chunk, stated, outer))
            else:
                chunk.odd = "a choice of a wrong type"
    elif choices is not None:
        chunk.odd = "choices of a wrong type"
    if chunk.error is not None:
        for choice in chunk.choices:
            choice.finish = None  # whatever reason it states, the error ended it
    return chunk


def _choice(chunk: Chunk, stated: dict[str, Any], outer: object) -> Choice:
    choice = Choice(stated)
    get = stated.get
    index = get("index")
    if type(index) is int and 0 <= index < MAX_CHOICES:
        choice.index = index
    elif index is not None:
        chunk.odd = "an index that is none"
    ids = get("token_ids")
    if ids is None:
        ids = outer
    if ids is not None:
        if _are_ids(ids):
            choice.ids = ids
        else:
            chunk.odd = "ids of a wrong type"
    prompt_ids = get("prompt_token_ids")
    if prompt_ids is not None:
        _take_prompt_ids(chunk, prompt_ids)
    if chunk.error is None and "error" in stated:
        chunk.error = choice_error(stated)
    finish = reason_of(get("finish_reason"))
    if finish is not None:
        if finish.lower() in FAILURES:
            choice.aborted = finish.lower()
        else:
            choice.finish = finish
        if finish == UNKNOWN and finish != get("finish_reason"):
            chunk.odd = "a finish reason of a wrong type"
        stop_reason = get("stop_reason")
        if stop_reason is None:
            stop_reason = get("matched_stop")  # SGLang's name for it
        if type(stop_reason) in (str, int):
            choice.stop_reason = stop_reason
    delta = get("delta")
    if delta is None:
        delta = get("message")  # of a reply that comes at once
    if type(delta) is dict:
        _read_delta(choice, delta)
        return choice
    text = get("text")
    if type(text) is str:
        if text:
            choice.text = text
            choice.kind = "content"
    elif text is not None or delta is not None:
        chunk.odd = "text of a wrong type"
    return choice


def _read_delta(choice: Choice, delta: dict[str, Any]) -> None:
    if not delta:
        choice.bare = True
        return
    text = delta.get("content")
    if type(text) is str:
        if text:
            choice.text = text
            choice.kind = "content"
    elif text is not None:  # in parts, as of a model that thinks
        choice.plain = False
        choice.kind = "content" if text else None
    if len(delta) == 1 and text is not None:
        return
    choice.role = delta.get("role") is not None
    for name, value in delta.items():
        if not value or name in _PLAIN_DELTA:
            continue
        if name in _REASONING and type(value) is str and choice.reasoning in ("", value):
            choice.reasoning = value
        else:
            choice.plain = False
        if choice.kind is None:
            choice.kind = _kind_of(name)


def _kind_of(name: str) -> Kind:
    if name in _REASONING:
        return "reasoning"
    return "tool" if name in ("tool_calls", "function_call") else "content"


def _take_prompt_ids(chunk: Chunk, prompt_ids: object) -> None:
    if _are_ids(prompt_ids):
        chunk.prompt_ids = PromptIds(prompt_ids)
    else:
        chunk.odd = "prompt ids of a wrong type"


def _are_ids(value: object) -> TypeGuard[list[int]]:
    if type(value) is not list:
        return False
    if len(value) == 1:
        return type(value[0]) is int and value[0] >= 0
    return not value or (set(map(type, value)) == {int} and min(value) >= 0)  # a prompt may have a million
