"""Why a model stopped, in one vocabulary: OpenAI's, to which the words of other APIs are translated."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from otel_llm import semconv

if TYPE_CHECKING:
    from otel_llm.formats.records import Attributes

LENGTH, CONTENT_FILTER = "length", "content_filter"
CUT: Final = frozenset({LENGTH, CONTENT_FILTER})
"""The finish reasons of a reply that ends before the model was done."""
_WORDS: Final = {
    "stop": ("stop", "end_turn", "stop_sequence", "complete", "completed", "finish", "finished", "eos", "eos_token"),
    LENGTH: ("length", "max_tokens", "max_output_tokens", "model_length", "model_context_window_exceeded"),
    CONTENT_FILTER: (
        *("content_filter", "content_filtered", "guardrail_intervened", "refusal", "safety", "recitation", "blocklist"),
        *("prohibited_content", "spii", "image_safety", "language", "error_toxic"),
    ),
    "tool_calls": ("tool_calls", "tool_call", "tool_use", "function_call"),
}
_OPENAIS: Final = {word: ours for ours, words in _WORDS.items() for word in words}


def finish_reason(stated: str | None) -> str | None:
    """Return a finish reason in OpenAI's word; an unknown one as it is, None for an empty one."""
    return _OPENAIS.get(stated.casefold(), stated) if stated else None


def finish_reason_of(attributes: Attributes, choice: int = 0) -> str | None:
    """Return the finish reason of a choice that a span states, in OpenAI's word; None if it states none."""
    stated = attributes.get(semconv.GEN_AI_RESPONSE_FINISH_REASONS)
    return _reason_in(stated, choice) if isinstance(stated, str) else None


@lru_cache(256)  # nearly all requests end for one of three reasons
def _reason_in(stated: str, choice: int) -> str | None:
    try:
        reasons = json.loads(stated)
    except (ValueError, RecursionError):
        return finish_reason(stated) if choice == 0 else None  # a single word
    if not isinstance(reasons, list) or not 0 <= choice < len(reasons) or not isinstance(reasons[choice], str):
        return None
    return finish_reason(reasons[choice])
