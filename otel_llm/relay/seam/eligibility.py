"""Which requests another backend can continue token for token, as far as the request itself tells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_llm.relay.seam.request import Endpoint, OwnedRequest

RESUMABLE_KINDS: Final = frozenset({"vllm", "sglang"})
"""The kinds of backend that return token ids and continue from ids."""

BOTH: Final[tuple[Endpoint, ...]] = ("chat", "completions")
CHAT: Final[tuple[Endpoint, ...]] = ("chat",)
COMPLETIONS: Final[tuple[Endpoint, ...]] = ("completions",)


class Key(NamedTuple):
    """How a key of a request carries over to `/v1/completions`.

    `carry`: with any value, sent again. `spent`: with any value, not sent again: the prompt ids stand for what it did,
    or it shapes nothing behind the first token. `neutral`: with one of the `neutral` values only; `sent` tells whether
    these are sent again, so that they go on overriding a default of the model's `generation_config`.
    """

    how: Literal["carry", "spent", "neutral"]
    endpoints: tuple[Endpoint, ...] = BOTH
    neutral: tuple[Any, ...] = ()
    sent: bool = False


_CARRY: Final = Key("carry")
_SPENT: Final = Key("spent")
_SPENT_CHAT: Final = Key("spent", CHAT)
_NEVER: Final = Key("neutral")

KEYS: Final[Mapping[str, Key]] = {
    # Each has the same meaning on both endpoints of vLLM 0.32, which also fill an absent one from the same defaults of
    # the model's generation_config (all but max_tokens, whose default there a relay cannot see).
    "model": _CARRY,
    "temperature": _CARRY,
    "top_p": _CARRY,
    "top_k": _CARRY,
    "min_p": _CARRY,
    "repetition_penalty": _CARRY,  # counts the prompt too, so what was generated still counts
    "logit_bias": _CARRY,
    "allowed_token_ids": _CARRY,
    "stop_token_ids": _CARRY,
    "include_stop_str_in_output": _CARRY,
    "ignore_eos": _CARRY,
    "skip_special_tokens": _CARRY,
    "spaces_between_special_tokens": _CARRY,
    "seed": _CARRY,  # greedy only, see `static_reason`
    "priority": _CARRY,
    "cache_salt": _CARRY,
    "session_id": _CARRY,
    "stream_interval": _CARRY,
    "user": _CARRY,
    # Made anew for the resumed request.
    "stream": _SPENT,
    "stream_options": _SPENT,
    "return_token_ids": _SPENT,
    "max_tokens": _SPENT,
    "max_completion_tokens": _SPENT_CHAT,
    # The prompt ids stand for these.
    "messages": _SPENT_CHAT,
    "prompt": Key("spent", COMPLETIONS),
    "add_generation_prompt": _SPENT_CHAT,
    "continue_final_message": _SPENT_CHAT,
    "add_special_tokens": _SPENT,
    "documents": _SPENT_CHAT,
    "chat_template": _SPENT_CHAT,
    "chat_template_kwargs": _SPENT_CHAT,
    "reasoning_effort": _SPENT_CHAT,
    "tools": _SPENT_CHAT,  # with tool_choice none, see `static_reason`
    "tool_choice": _SPENT_CHAT,
    "parallel_tool_calls": _SPENT_CHAT,
    # These shape nothing behind the first chunk, or nothing without logprobs.
    "request_id": _SPENT,  # the client has the first one's id already; an engine may refuse one that it still serves
    "return_prompt_text": _SPENT_CHAT,
    "return_tokens_as_token_ids": _SPENT,
    "return_token_offsets": _SPENT,
    "return_mm_kwargs": _SPENT,
    "mm_payload": _SPENT,
    # Engines count these over the output of one request, which begins anew.
    "frequency_penalty": Key("neutral", neutral=(0,), sent=True),
    "presence_penalty": Key("neutral", neutral=(0,), sent=True),
    "min_tokens": Key("neutral", neutral=(0,)),
    "stop": Key("neutral", neutral=([],)),
    "bad_words": Key("neutral", neutral=([],)),
    "thinking_token_budget": Key("neutral", neutral=(-1,)),
    "repetition_detection": _NEVER,
    "watermarking": Key("neutral", neutral=(False,)),
    # More or other choices than one plain reply.
    "n": Key("neutral", neutral=(1,)),
    "best_of": Key("neutral", COMPLETIONS, neutral=(1,)),
    "use_beam_search": Key("neutral", neutral=(False,)),
    "length_penalty": Key("neutral", neutral=(1,)),  # of beam search only
    "suffix": Key("neutral", COMPLETIONS, neutral=("",)),
    "echo": Key("neutral", neutral=(False,)),
    # What the relay cannot shape alike.
    "logprobs": Key("neutral", CHAT, neutral=(False,)),  # of a completion it is a number, and false is 0: not none
    "top_logprobs": Key("neutral", CHAT, neutral=(0,)),
    "prompt_logprobs": _NEVER,
    "logprob_token_ids": Key("neutral", neutral=([],)),
    "include_reasoning": Key("neutral", CHAT, neutral=(True,)),
    "routed_experts_prompt_start": Key("neutral", neutral=(0,)),
    # State of a grammar.
    "response_format": Key("neutral", neutral=({"type": "text"},)),
    "structured_outputs": _NEVER,
    # The prompt that the engine sees is not the prompt ids alone.
    "truncate_prompt_tokens": _NEVER,
    "truncation_side": _NEVER,
    "prompt_embeds": _NEVER,
    "media_io_kwargs": Key("neutral", neutral=({},)),
    "mm_processor_kwargs": Key("neutral", neutral=({},)),
    "kv_transfer_params": _NEVER,
    "ec_transfer_params": _NEVER,
    "vllm_xargs": Key("neutral", neutral=({},)),  # extensions with state of their own
}
"""Keys that are known to carry over, each with the values for which that holds. Read from vLLM 0.32's protocol."""

_STREAM_OPTIONS: Final = frozenset({"include_usage", "continuous_usage_stats"})
_NUMBERS: Final = (int, float)


def static_reason(request: OwnedRequest, kind: str) -> str | None:
    """Return why a request cannot be continued elsewhere, None where nothing in it stands against that.

    The first condition that fails, in the order of the contract: kind, choices, sampling, keys, tools. Whether there is
    another backend is not for the request to tell.
    """
    if kind not in RESUMABLE_KINDS:
        return f"a backend of kind {kind} returns no token ids"
    if request.choices != 1:
        return f"{request.choices} choices"
    values = request.values
    if values.get("seed") is not None and not is_greedy(values):
        return "sampled with a seed"
    return _key_reason(request) or _tools_reason(values)


def is_greedy(values: Mapping[str, Any]) -> bool:
    """Return whether a request states temperature 0."""
    temperature = values.get("temperature")
    return _is_number(temperature) and temperature == 0


def carried_keys(request: OwnedRequest) -> list[str]:
    """Return the keys of an eligible request that are sent again as they are, in their order."""
    values = request.values
    return [key for key in values if values[key] is not None and (KEYS[key].how == "carry" or KEYS[key].sent)]


def _key_reason(request: OwnedRequest) -> str | None:
    if request.multimodal:
        return "multimodal content"
    for name, value in request.values.items():
        if value is None:
            continue
        key = KEYS.get(name)
        if key is None or request.endpoint not in key.endpoints:
            return f"{name[:64]!r} is not known to carry over"
        if key.how == "neutral" and not any(_equal(value, neutral) for neutral in key.neutral):
            return f"{name!r} does not carry over"
    options = request.values.get("stream_options")
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
