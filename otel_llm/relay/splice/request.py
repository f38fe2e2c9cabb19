"""A streamed chat or text completion, as its client requested it.

A request that the relay and a backend could read differently is refused: whatever a backend takes for a stream is
owned, so that none is served past the queue, the classes and the budgets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeGuard

from otel_llm.relay.splice import members
from otel_llm.relay.splice.large_body import LARGE_BYTES, LargeBody, Texts
from otel_llm.semconv import MAX_CHOICES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Endpoint = Literal["chat", "completions"]

OPERATIONS: Final[Mapping[Endpoint, str]] = {"chat": "chat", "completions": "text_completion"}
"""`gen_ai.operation.name` of each endpoint."""

_PROMPT_KEY: Final[Mapping[Endpoint, str]] = {"chat": "messages", "completions": "prompt"}
PROMPT_KEYS: Final = frozenset(_PROMPT_KEY.values())
"""The member with the prompt; it is not kept apart from the body."""
RETURN_IDS: Final = "return_token_ids"
READ_KEYS: Final = frozenset(
    {
        "stream",
        "stream_options",
        "n",
        "best_of",
        "model",
        "max_tokens",
        "max_completion_tokens",
        RETURN_IDS,
        *PROMPT_KEYS,
    }
)
"""Members that decide what a request costs and who owns it: each is read under its one name."""
MOST_N: Final = 8
"""Replies to one prompt, by default."""
_TEXT_PARTS: Final = ("text", "refusal", "thinking")


class RequestError(ValueError):
    """A request that is refused; `param` is the member at fault, if it is one."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


def endpoint_of(path: str) -> Endpoint | None:
    """Return the endpoint of a path (a query is ignored), None if it is none of the two."""
    path = path.partition("?")[0]
    if path.endswith("/chat/completions"):
        return "chat"
    return "completions" if path.endswith("/completions") else None


def model_of(body: bytes) -> str:
    """Return the model that a JSON body names, "" if it names none; call it in a thread for more than `LARGE_BYTES`.

    Of a body that is not whole what is there is read.
    """
    if len(body) > LARGE_BYTES:
        try:
            model = LargeBody(body).values().get("model")
        except (ValueError, RecursionError):
            return ""
    else:
        found = members.begun_members(body.decode("utf-8", "replace"))
        model = next((one.value for one in found if one.key == "model"), None)
    return model if isinstance(model, str) else ""


@dataclass(frozen=True, slots=True)
class OwnedRequest:
    """A request whose reply the relay owns.

    `values` and `raw` have the value and the JSON text of each member but the prompt.
    """

    endpoint: Endpoint
    body: bytes
    values: Mapping[str, Any]
    raw: Mapping[str, str]
    model: str | None
    choices: int
    """The number of requested choices: prompts times `n`."""
    asked_ids: bool
    """The client itself asked for token ids, so it gets them."""
    wants_usage: bool
    continuous_usage: bool
    max_tokens: int | None
    """The number of tokens that the client allows; None if it states none (or none that is a number)."""
    prompt_tokens: int | None
    """Tokens of a prompt that is a list of ids; None for text, whose tokens are not known yet."""
    multimodal: bool
    """A message has a part that is not text, or may have."""
    ids_at: tuple[int, int]
    """The bytes of the value of `return_token_ids` in the body; if there is none its place, twice."""
    prompt_at: tuple[int, int]
    """The bytes of the value of the prompt in the body, of messages for a chat; (0, 0) if there is none."""

    @property
    def operation(self) -> str:
        """The `gen_ai.operation.name`."""
        return OPERATIONS[self.endpoint]

    @classmethod
    def parse(cls, path: str, body: bytes, most_n: int = MOST_N) -> OwnedRequest | None:
        """Return the request of a POST whose `stream` is true, None for one without a stream.

        Raises: RequestError for any other value, and for a body that is no JSON object in UTF-8, nested beyond the
            parser's depth, with a member twice, or with more than `most_n` replies to a prompt.
        """
        endpoint = endpoint_of(path)
        if endpoint is None:
            return None
        try:
            read = _of_large(body) if len(body) > LARGE_BYTES else _of_small(body)
        except (ValueError, RecursionError):
            raise RequestError("the body is no JSON object in UTF-8") from None
        values = read.values
        for one in (read.keys, read.option_keys):
            _check_names(one)
        _check_counts(values, most_n)
        stream = values.get("stream")
        if stream is None or stream is False:
            return None
        if stream is not True:
            raise RequestError("stream is true or false", "stream")
        options = values.get("stream_options")
        options = options if isinstance(options, dict) else {}
        wants_usage = bool(options.get("include_usage"))
        model = values.get("model")
        choices = int(values.get("n") or 1) * (read.prompts if endpoint == "completions" else 1)
        if choices > MAX_CHOICES:  # those beyond would not be recorded
            raise RequestError(f"a stream has at most {MAX_CHOICES} replies, not {choices}", "prompt")
        return cls(
            endpoint=endpoint,
            body=body,
            values={key: value for key, value in values.items() if key not in PROMPT_KEYS},
            raw=read.raw,
            model=model if isinstance(model, str) else None,
            choices=choices,
            # vLLM takes 1 and "true" for true: ids are asked for wherever the server may answer with them.
            asked_ids=values.get(RETURN_IDS) not in (None, False),
            wants_usage=wants_usage,
            continuous_usage=wants_usage and bool(options.get("continuous_usage_stats")),
            max_tokens=_max_tokens(endpoint, values),
            prompt_tokens=read.prompt_tokens,
            multimodal=read.multimodal,
            ids_at=read.ids_at,
            prompt_at=read.prompt_at.get(_PROMPT_KEY[endpoint], (0, 0)),
        )

    def body_with_ids(self) -> tuple[bytes | memoryview, ...]:
        """Return the body with `return_token_ids` true, in parts: for an endpoint whose streams bring ids then.

        All other characters stay, so each value, number and their order is kept. A large body is not copied for it.
        """
        if self.asked_ids:
            return (self.body,)
        begin, end = self.ids_at
        asked = b"true" if end > begin else f',"{RETURN_IDS}":true'.encode()
        whole = memoryview(self.body)
        return whole[:begin], asked, whole[end:]


class _Read(NamedTuple):
    """The contents of a body: keys in order, values, JSON texts of all but the prompt, and facts of the prompt."""

    keys: Sequence[str]
    option_keys: Sequence[str]
    values: dict[str, Any]
    raw: Mapping[str, str]
    prompts: int
    prompt_tokens: int | None
    multimodal: bool
    ids_at: tuple[int, int]
    prompt_at: Mapping[str, tuple[int, int]]


def _of_small(body: bytes) -> _Read:
    """Read a body as a whole. Raises: as `members.members`."""
    text = body.decode("utf-8")
    found = members.only_object(text)
    options = [members.members(text, one.start)[0] for one in found if _has_options(one)]
    values = {member.key: member.value for member in found}
    prompt = values.get("prompt")
    ids = next((one for one in found if one.key == RETURN_IDS), None)
    at = (
        (found[-1].end, found[-1].end) if found and ids is None else (ids.start, ids.end) if ids is not None else (0, 0)
    )
    return _Read(
        [one.key for one in found],
        [one.key for inner in options for one in inner],
        values,
        {m.key: text[m.start : m.end] for m in found if m.key not in PROMPT_KEYS},
        len(prompt) if isinstance(prompt, list) and prompt and not _is_ids(prompt) else 1,
        len(prompt) if _is_ids(prompt) else None,
        _is_multimodal(values.get("messages")),
        _bytes_at(text, at),
        {one.key: _bytes_at(text, (one.start, one.end)) for one in found if one.key in PROMPT_KEYS},
    )


def _of_large(body: bytes) -> _Read:
    """Read a body by its positions. Raises: ValueError, RecursionError if it is no object."""
    large = LargeBody(body)
    values = large.values()
    at = {one.key: one for one in large.members}
    prompts, tokens = 1, None
    if "prompt" in at:
        count, first = large.count(at["prompt"])
        tokens = count if type(first) is int else None
        prompts = 1 if tokens is not None else max(1, count)
    options = values.get("stream_options")
    ids, last = at.get(RETURN_IDS), large.members[-1].end if large.members else 0
    return _Read(
        [one.key for one in large.members],
        large.keys_of(at["stream_options"]) if isinstance(options, dict) else (),
        values,
        Texts(body, {key: one for key, one in at.items() if key not in PROMPT_KEYS}),
        prompts,
        tokens,
        "messages" in at and large.any_part(at["messages"], _is_multimodal),
        (last, last) if ids is None else (ids.begin, ids.end),
        {key: (at[key].begin, at[key].end) for key in PROMPT_KEYS & at.keys()},
    )


def _bytes_at(text: str, characters: tuple[int, int]) -> tuple[int, int]:
    """Return where some characters of a text are in its UTF-8."""
    begin, end = characters
    at = len(text[:begin].encode())
    return at, at + len(text[begin:end].encode())


def _has_options(member: members.Member) -> bool:
    return member.key == "stream_options" and isinstance(member.value, dict)


def _check_names(keys: Iterable[str]) -> None:
    """Raise RequestError for a member that is there twice, or under another spelling of a name that the relay reads.

    Some backends compare names without case; one that is there twice counts once, some take the first, some the last.
    """
    seen = set[str]()
    for key in keys:
        name = key.casefold()
        if key in seen or (name in READ_KEYS and name != key):
            raise RequestError("a member is there twice, or in another case", name if name in READ_KEYS else None)
        seen.add(key)


def _check_counts(values: Mapping[str, Any], most: int) -> None:
    """Raise RequestError unless `n` and `best_of` are whole numbers up to `most`, null or absent."""
    for name in ("n", "best_of"):
        count = values.get(name)
        whole = type(count) is int or (type(count) is float and count.is_integer())
        if count is not None and not (whole and 1 <= count <= most):
            raise RequestError(f"{name} is a whole number from 1 to {most}", name)


def _is_ids(prompt: object) -> TypeGuard[list[int]]:
    return isinstance(prompt, list) and bool(prompt) and type(prompt[0]) is int


def _is_multimodal(messages: object) -> bool:
    contents = (m.get("content") for m in messages if isinstance(m, dict)) if isinstance(messages, list) else ()
    parts = (part for content in contents if isinstance(content, list) for part in content)
    # vLLM looks for the keys of pictures and sounds in a part without a type, and in one with a uuid.
    return any(isinstance(part, dict) and (part.get("type") not in _TEXT_PARTS or "uuid" in part) for part in parts)


def _max_tokens(endpoint: Endpoint, values: Mapping[str, Any]) -> int | None:
    stated = values.get("max_completion_tokens") if endpoint == "chat" else None
    if stated is None:
        stated = values.get("max_tokens")
    return stated if type(stated) is int else None
