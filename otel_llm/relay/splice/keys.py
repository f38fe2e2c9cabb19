"""The keys of a streamed request, by kind of engine: which have the same effect if another engine continues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_llm.relay.splice.request import Endpoint

BOTH: Final[tuple[Endpoint, ...]] = ("chat", "completions")
CHAT: Final[tuple[Endpoint, ...]] = ("chat",)
COMPLETIONS: Final[tuple[Endpoint, ...]] = ("completions",)


class Key(NamedTuple):
    """How a key of a request carries over to `/v1/completions`.

    `carry`: with any value, sent again. `spent`: with any value, not sent again: its effect is in the prompt ids, or it
    shapes nothing after the first token. `neutral`: with one of the `neutral` values only; `sent` tells whether these
    are sent again, so that they go on overriding a default of the model's `generation_config`.
    """

    how: Literal["carry", "spent", "neutral"]
    endpoints: tuple[Endpoint, ...] = BOTH
    neutral: tuple[Any, ...] = ()
    sent: bool = False


_CARRY: Final = Key("carry")
_SPENT: Final = Key("spent")
_SPENT_CHAT: Final = Key("spent", CHAT)
_NEVER: Final = Key("neutral")

OPENAI_KEYS: Final[Mapping[str, Key]] = {
    "store": _SPENT,  # whether OpenAI keeps the reply for later
    "metadata": _SPENT,  # labels of a reply that is kept
    "service_tier": _SPENT,  # price and haste at OpenAI: a stream that runs has been admitted
    "prompt_cache_key": _SPENT,  # which cache has the prompt: it changes the time and not the text
    "prompt_cache_retention": _SPENT,  # how long that cache is kept
    "safety_identifier": _SPENT,  # who is to blame for a misuse
    "verbosity": _SPENT,  # the length of answers of OpenAI's own models, by no template of another
    "prediction": _SPENT,  # text that is expected, to be faster: the reply is the same
    "modalities": Key("neutral", CHAT, neutral=(["text"],)),  # sound is no text
    "functions": Key("neutral", CHAT, neutral=([],)),  # what tools were called once
    "function_call": Key("neutral", CHAT, neutral=("none",)),  # as `tool_choice`
}
"""Keys of OpenAI's API that clients send and the engines ignore, with the reason of each; the engine's own go first."""

VLLM_KEYS: Final[Mapping[str, Key]] = {
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
    # Set by the resumed request itself.
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
    "stop": Key("neutral", neutral=([], "")),
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
    # The relay cannot produce these.
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
"""Keys of both endpoints, each with the values for which it carries over. Read from vLLM 0.32's protocol."""

VLLM_NATIVE_KEYS: Final[Mapping[str, Key]] = {
    # The chat itself is sent again, so what shapes its prompt or its form has its effect on the other backend too.
    **{
        name: Key("carry", CHAT) if key.how == "spent" else key
        for name, key in VLLM_KEYS.items()
        if "chat" in key.endpoints
    },
    # Set by the resumed request itself.
    "return_token_ids": _SPENT_CHAT,
    "max_tokens": _SPENT_CHAT,
    "max_completion_tokens": _SPENT_CHAT,
    "min_tokens": _SPENT_CHAT,
    "request_id": _SPENT_CHAT,  # an engine may refuse one that it still serves
    # The endpoint makes them of each token.
    "logprobs": Key("carry", CHAT),
    "top_logprobs": Key("carry", CHAT),
    "parallel_tool_calls": Key("neutral", CHAT, neutral=(True,)),  # else a grammar holds the calls
}
"""Keys of a chat that goes on from ids on the chat endpoint itself, each with the values for which it carries over."""

_CARRY_HERE: Final = Key("carry", COMPLETIONS)
_SPENT_HERE: Final = Key("spent", COMPLETIONS)

SGLANG_KEYS: Final[Mapping[str, Key]] = {
    # The endpoint is the same, and its defaults are constants: no generation_config is asked.
    "model": _CARRY_HERE,
    "temperature": _CARRY_HERE,
    "top_p": _CARRY_HERE,
    "top_k": _CARRY_HERE,
    "min_p": _CARRY_HERE,
    "logit_bias": _CARRY_HERE,
    "stop_token_ids": _CARRY_HERE,
    "no_stop_trim": _CARRY_HERE,
    "ignore_eos": _CARRY_HERE,
    "skip_special_tokens": _CARRY_HERE,
    "seed": _CARRY_HERE,  # greedy only, see `static_reason`
    "priority": _CARRY_HERE,
    "cache_salt": _CARRY_HERE,
    "extra_key": _CARRY_HERE,
    "session_id": _CARRY_HERE,  # of the prefix cache; `session_params` has a state
    "user": _CARRY_HERE,
    "custom_labels": _CARRY_HERE,
    # Set by the resumed request itself.
    "stream": _SPENT_HERE,
    "stream_options": _SPENT_HERE,
    "return_token_ids": _SPENT_HERE,
    "max_tokens": _SPENT_HERE,
    # The prompt ids stand for these.
    "prompt": _SPENT_HERE,
    "suffix": _SPENT_HERE,  # a server's completion template makes it part of the prompt; nothing else reads it
    # They name the first request, or a worker of its server.
    "rid": _SPENT_HERE,
    "routed_dp_rank": _SPENT_HERE,
    "data_parallel_rank": _SPENT_HERE,
    # Counted, or matched, over the output of one request; a repetition penalty is here, too.
    "frequency_penalty": Key("neutral", COMPLETIONS, neutral=(0,), sent=True),
    "presence_penalty": Key("neutral", COMPLETIONS, neutral=(0,), sent=True),
    "repetition_penalty": Key("neutral", COMPLETIONS, neutral=(1,), sent=True),
    "min_tokens": Key("neutral", COMPLETIONS, neutral=(0,)),
    "stop": Key("neutral", COMPLETIONS, neutral=([], "")),
    "stop_regex": Key("neutral", COMPLETIONS, neutral=([],)),
    "watermark": _NEVER,
    "custom_logit_processor": _NEVER,
    "custom_params": Key("neutral", COMPLETIONS, neutral=({},)),
    "session_params": _NEVER,
    # More or other choices than one plain reply.
    "n": Key("neutral", COMPLETIONS, neutral=(1,)),
    "best_of": Key("neutral", COMPLETIONS, neutral=(1,)),
    "echo": Key("neutral", COMPLETIONS, neutral=(False,)),
    # The relay cannot produce these: logprobs, and chunks with `hidden_states` or `sglext`.
    "logprobs": _NEVER,
    "return_hidden_states": Key("neutral", COMPLETIONS, neutral=(False,)),
    "return_routed_experts": Key("neutral", COMPLETIONS, neutral=(False,)),
    "routed_experts_start_len": Key("neutral", COMPLETIONS, neutral=(0,)),
    "return_cached_tokens_details": Key("neutral", COMPLETIONS, neutral=(False,)),
    "return_spec_tokens_details": Key("neutral", COMPLETIONS, neutral=(False,)),
    # State of a grammar.
    "response_format": Key("neutral", COMPLETIONS, neutral=({"type": "text"},)),
    "json_schema": _NEVER,
    "regex": _NEVER,
    "ebnf": _NEVER,
    # An adapter, pictures, and a prefill that another server has made.
    "lora_path": _NEVER,
    "images_config": Key("neutral", COMPLETIONS, neutral=({},)),
    "mm_processor_kwargs": Key("neutral", COMPLETIONS, neutral=({},)),
    "bootstrap_host": _NEVER,
    "bootstrap_port": _NEVER,
    "bootstrap_room": _NEVER,
    "disagg_prefill_dp_rank": _NEVER,
}
"""Keys of `/v1/completions`, each with the values for which it carries over. Read from SGLang 0.5.23's protocol.

SGLang ignores unknown keys; such a key does not carry over either, as another release may know it; `OPENAI_KEYS` do.
"""
