"""What a reply states of itself, besides its tokens' times: its usage, its finish reasons, who responded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_llm import semconv

if TYPE_CHECKING:
    from otel_llm.export.records import AttributeValue

MAX_COUNT: Final = 2**31 - 1
"""The largest number of tokens that is believed: the largest on a span."""
NO_REASON: Final = "error"
"""The finish reason of a choice without one, beside others that have one."""
MAX_TEXT: Final = 256
"""The longest text of a reply that becomes an attribute, in characters."""


class Statements:
    """The statements of one reply; None for what it does not state.

    `output_tokens` is the whole reply, `reasoning_tokens` the part of it that is reasoning. `hides_reasoning`: some of
    the reasoning came without its text, so that `output_tokens` alone does not say how much text there was to read.
    `finish_reasons`: by choice, why the model stopped, in the API's own word.
    """

    __slots__ = (
        "cache_read_tokens",
        "cache_write_tokens",
        "finish_reasons",
        "hides_reasoning",
        "input_tokens",
        "output_tokens",
        "reasoning_tokens",
        "response_id",
        "response_model",
    )

    def __init__(self) -> None:
        self.response_id: str | None = None
        self.response_model: str | None = None
        self.input_tokens: int | None = None
        self.cache_read_tokens: int | None = None
        self.cache_write_tokens: int | None = None
        self.output_tokens: int | None = None
        self.reasoning_tokens: int | None = None
        self.hides_reasoning = False
        self.finish_reasons: dict[int, str] = {}

    def use(self, usage: object, *, total: bool = True) -> None:
        """Note a usage of OpenAI's chat completions; `total`: the reply has no more tokens than it says."""
        prompt = count_of(member(usage, "prompt_tokens"))
        if prompt is not None:
            self.input_tokens = prompt
        self.use_cache(member(member(usage, "prompt_tokens_details"), "cached_tokens"))
        output = count_of(member(usage, "completion_tokens"))
        if output is None or not total:
            return
        reasoning = count_of(member(member(usage, "completion_tokens_details"), "reasoning_tokens"))
        every = count_of(member(usage, "total_tokens"))
        if reasoning and every is not None and every == (prompt or 0) + output + reasoning:
            output += reasoning  # as xAI counts
        self.output_tokens, self.reasoning_tokens = output, reasoning

    def use_cache(self, read: object, written: object = None) -> None:
        """Note how many tokens of the prompt were read from a cache, and written to one; None where not stated."""
        if (tokens := count_of(read)) is not None:
            self.cache_read_tokens = tokens
        if (tokens := count_of(written)) is not None:
            self.cache_write_tokens = tokens

    def finish(self, choice: int, reason: object) -> None:
        """Note why the model stopped on a choice, if a text says it."""
        if (word := text_of(reason)) is not None:
            self.finish_reasons[choice] = word[:MAX_TEXT]

    @property
    def total(self) -> tuple[int | None, int | None]:
        """Return the tokens of the reply and the reasoning among them, both None if the reply hides how many it has."""
        if self.hides_reasoning and self.reasoning_tokens is None:
            return None, None
        return self.output_tokens, self.reasoning_tokens

    def segment_attributes(self, *, alone: bool) -> dict[str, AttributeValue]:
        """Return the attributes of a last segment that segment 0 could not have; `alone`: of the only choice."""
        output, reasoning = self.total if alone else (None, None)
        counts = {
            semconv.GEN_AI_USAGE_INPUT_TOKENS: self.input_tokens,
            semconv.GEN_AI_USAGE_OUTPUT_TOKENS: output,
            semconv.GEN_AI_USAGE_REASONING_TOKENS: None if output is None else reasoning,
        }
        return {name: count for name, count in counts.items() if count is not None}

    def span_attributes(self, choices: int = 1) -> dict[str, AttributeValue]:
        """Return the attributes of the request span, given its number of choices."""
        attributes = self.segment_attributes(alone=True)
        cached = {
            semconv.GEN_AI_USAGE_CACHE_READ_TOKENS: self.cache_read_tokens,
            semconv.GEN_AI_USAGE_CACHE_WRITE_TOKENS: self.cache_write_tokens,
        }
        attributes |= {name: count for name, count in cached.items() if count is not None}
        if self.response_id:
            attributes[semconv.GEN_AI_RESPONSE_ID] = self.response_id[:MAX_TEXT]
        if self.response_model:
            attributes[semconv.GEN_AI_RESPONSE_MODEL] = self.response_model[:MAX_TEXT]
        if self.finish_reasons:
            every = range(max(choices, max(self.finish_reasons) + 1))
            reasons = tuple(self.finish_reasons.get(choice, NO_REASON) for choice in every)
            attributes[semconv.GEN_AI_RESPONSE_FINISH_REASONS] = reasons
        return attributes


def member(thing: object, name: str) -> Any:
    """Return a member of an SDK's object or of a JSON object, None if it has none."""
    return thing.get(name) if isinstance(thing, dict) else getattr(thing, name, None)


def count_of(value: object) -> int | None:
    """Return a stated number of tokens, None if it is no valid one."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT else None


def text_of(value: object) -> str | None:
    """Return a text that is not empty, else None."""
    return value if isinstance(value, str) and value else None
