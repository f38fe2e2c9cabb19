"""A streamed chat or text completion, as its client requested it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeGuard

from otel_llm.relay.seam import members

if TYPE_CHECKING:
    from collections.abc import Mapping

Endpoint = Literal["chat", "completions"]

OPERATIONS: Final[Mapping[Endpoint, str]] = {"chat": "chat", "completions": "text_completion"}
"""`gen_ai.operation.name` of each endpoint."""

PROMPT_KEYS: Final = frozenset({"messages", "prompt"})
"""The member with the prompt; it is not kept apart from the body."""
RETURN_IDS: Final = "return_token_ids"
_TEXT_PARTS: Final = ("text", "refusal", "thinking")


def endpoint_of(path: str) -> Endpoint | None:
    """Return the endpoint of a path (a query is ignored), None where it is none of the two."""
    path = path.partition("?")[0]
    if path.endswith("/chat/completions"):
        return "chat"
    return "completions" if path.endswith("/completions") else None


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
    """The number of tokens that the client allows; None where it states none (or none that is a number)."""
    prompt_tokens: int | None
    """Tokens of a prompt that is a list of ids; None for text, whose tokens are not known yet."""
    multimodal: bool
    """A message has a part that is not text."""

    @property
    def operation(self) -> str:
        """The `gen_ai.operation.name`."""
        return OPERATIONS[self.endpoint]

    @classmethod
    def parse(cls, path: str, body: bytes) -> OwnedRequest | None:
        """Return the request of a POST, None where the relay does not own it and passes it on untouched.

        It owns a JSON object in UTF-8 whose `stream` is true. Nesting beyond the parser's depth and duplicate keys are
        not owned: a backend may read the latter otherwise than the relay.
        """
        endpoint = endpoint_of(path)
        if endpoint is None:
            return None
        try:
            text = body.decode("utf-8")
            found = members.only_object(text)
            values = {member.key: member.value for member in found}
            if values.get("stream") is not True or len(values) != len(found):
                return None
            options = values.get("stream_options")
            if isinstance(options, dict):
                at = next(member.start for member in found if member.key == "stream_options")
                if len(members.members(text, at)[0]) != len(options):
                    return None
        except (ValueError, RecursionError):
            return None
        options = options if isinstance(options, dict) else {}
        wants_usage = bool(options.get("include_usage"))
        prompt_key = "messages" if endpoint == "chat" else "prompt"
        prompt = values.get(prompt_key)
        model = values.get("model")
        return cls(
            endpoint=endpoint,
            body=body,
            values={key: value for key, value in values.items() if key not in PROMPT_KEYS},
            raw={m.key: text[m.start : m.end] for m in found if m.key not in PROMPT_KEYS},
            model=model if isinstance(model, str) else None,
            choices=_choices(values, prompt if endpoint == "completions" else None),
            # vLLM takes 1 and "true" for true: ids are asked for wherever the server may answer with them.
            asked_ids=values.get(RETURN_IDS) not in (None, False),
            wants_usage=wants_usage,
            continuous_usage=wants_usage and bool(options.get("continuous_usage_stats")),
            max_tokens=_max_tokens(endpoint, values),
            prompt_tokens=len(prompt) if _is_ids(prompt) else None,
            multimodal=_is_multimodal(values.get("messages")),
        )

    def body_with_ids(self) -> bytes:
        """Return the body with `return_token_ids` true: for an endpoint whose streams bring ids then.

        All other characters stay, so each value, number and their order is kept.
        """
        if self.asked_ids:
            return self.body
        text = self.body.decode("utf-8")
        found = members.only_object(text)
        for member in found:
            if member.key == RETURN_IDS:
                return members.replaced(text, [(member.start, member.end, "true")]).encode()
        end = found[-1].end  # never empty: it has `stream`
        return members.replaced(text, [(end, end, f',"{RETURN_IDS}":true')]).encode()


def _choices(values: Mapping[str, Any], prompt: object) -> int:
    stated = values.get("n")
    count = stated if type(stated) is int and stated > 0 else 1
    if isinstance(prompt, list) and prompt and not _is_ids(prompt):
        count *= len(prompt)
    return count


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
