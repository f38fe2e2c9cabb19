"""The differences between the HTTP APIs of the kinds of backend, as far as a resumed stream needs them.

vLLM (0.32): with `return_token_ids` a stream of either endpoint brings ids: those of the prompt in the first chunk,
those of the output with each, inside the choice or beside it. A finish has `stop_reason`. A chunk of text and one id
has all the text of that id. `/detokenize` names special tokens, which a stream leaves out.

SGLang (0.5.23), read from its code and not run. `/v1/completions` takes `return_token_ids`; ids stand in the choice:
`prompt_token_ids` in the first chunk, and in each `token_ids`, those that are new, whatever `--stream-interval` and
`--incremental-streaming-output` say. A list of ids as `prompt` becomes the engine's `input_ids` and is continued as it
is. A streamed chat brings no ids while it runs: with `return_token_ids` it is refused (400), and `sglext`, which can be
asked for instead, comes in one chunk behind the finish. `/generate` streams ids, but a chat cannot be served by it, or
by `/v1/completions`, unnoticed: a chat's stop tokens, parsers and sampling defaults are those of its endpoint. So chats
are not resumable there. A finish has `matched_stop`, the id of the stop token, also if that is the end of text. Text
that the next token may change is sent up to its last space, so that a chunk's text may end within that of its one id.
`/detokenize` leaves special tokens out unless `skip_special_tokens` is false, as a stream does. A server with a
completion template makes a text of `prompt` and `suffix`, whatever they are, unless the suffix is "". A `usage` has
`reasoning_tokens`; a resumed one has not, since the count of the source is not known.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from otel_llm.relay.splice.keys import BOTH, COMPLETIONS, SGLANG_KEYS, VLLM_KEYS, VLLM_NATIVE_KEYS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_llm.relay.splice.keys import Key
    from otel_llm.relay.splice.request import Endpoint


@dataclass(frozen=True, slots=True)
class Dialect:
    """The API of one kind of backend; the defaults are those of a kind that returns no ids."""

    ids_of: tuple[Endpoint, ...] = ()
    """The endpoints whose streams have token ids if `return_token_ids` asks for them."""
    keys: Mapping[str, Key] = field(default_factory=dict)
    """The known keys of a request; others do not carry over."""
    native_keys: Mapping[str, Key] = field(default_factory=dict)
    """The keys of a chat that its own endpoint continues from ids; none if it continues no chat."""
    stop_key: str = "stop_reason"
    """The member of a choice with the cause of its end."""
    whole_texts: bool = True
    """A chunk of text and one id has all the text of that id."""
    detokenize_keys: tuple[str, ...] = ()
    """Keys of a request that `/detokenize` gets too, so that it answers with the text of a stream."""
    resume_members: str = ""
    """The members of a resuming request beside those of every kind: JSON members, with a comma before each."""
    done_is_whole: bool = True
    """`[DONE]` ends a reply that states no finish reason; False: the server states one in every whole reply."""
    health_s: float = 0.0
    """How long `/health` takes at the least (s): SGLang's sleeps before it checks the engine's answer."""


NO_IDS: Final = Dialect()
_DIALECTS: Final[Mapping[str, Dialect]] = {
    "vllm": Dialect(ids_of=BOTH, keys=VLLM_KEYS, native_keys=VLLM_NATIVE_KEYS, done_is_whole=False),
    "sglang": Dialect(
        ids_of=COMPLETIONS,
        keys=SGLANG_KEYS,
        stop_key="matched_stop",
        whole_texts=False,
        done_is_whole=False,
        detokenize_keys=("skip_special_tokens",),
        resume_members=',"suffix":""',
        health_s=1.0,
    ),
}


def dialect_of(kind: str) -> Dialect:
    """Return the API of a kind of backend."""
    return _DIALECTS.get(kind, NO_IDS)
