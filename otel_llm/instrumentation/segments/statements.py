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
"""The longest text of a reply that is kept, in characters."""
UNKNOWN: Final = "unknown"
"""The finish reason of a choice whose reason is no text."""
FAILURES: Final = frozenset({"error", "abort", "timeout"})
"""Finish reasons of a server that failed, in lower case; a reply with one is not whole."""
_NO_REASONS: Final = frozenset({"", "null", "none"})
_UNSPECIFIED: Final = "unspecified"
"""The end of the words for no reason in APIs that are made from protocol buffers."""


class Statements:
    """The statements of one reply; None for what it does not state.

    `output_tokens` is the whole reply, `reasoning_tokens` the part of it that is reasoning. `hides_reasoning`: some of
    the reasoning came without its text, so that `output_tokens` alone does not say how much text there was to read.
    `finish_reasons`: by choice, why the model stopped, in the API's own word. `failure`: the kind of the error that the
    reply states in one of its choices.
    """

    __slots__ = (
        "cache_read_tokens",
        "cache_write_tokens",
        "failure",
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
        self.failure: str | None = None

    @property
    def named(self) -> bool:
        """Return whether the reply's id and model are known."""
        return self.response_id is not None and self.response_model is not None

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
        """Note how many tokens of the prompt were read from a cache, and written to one; None if not stated."""
        if (tokens := count_of(read)) is not None:
            self.cache_read_tokens = tokens
        if (tokens := count_of(written)) is not None:
            self.cache_write_tokens = tokens

    def name(self, response_id: object, model: object) -> None:
        """Note the reply's id and model; of each the first text counts."""
        if self.response_id is None:
            self.response_id = text_of(response_id)
        if self.response_model is None:
            self.response_model = text_of(model)

    def finish(self, choice: int, stated: object) -> bool:
        """Note why the model stopped on a choice; return whether it did, and the choice is whole.

        A reason may be stated too early: text behind it shows that the choice continues, see `goes_on`.
        """
        reason = reason_of(stated)
        if reason is None:
            return False
        self.finish_reasons[choice] = reason
        if reason.lower() in FAILURES:
            self.failure = self.failure or reason.lower()
            return False
        return True

    def goes_on(self, choice: int) -> None:
        """Note text of a choice: an earlier reason was not its last."""
        if self.finish_reasons:
            self.finish_reasons.pop(choice, None)

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
            attributes[semconv.GEN_AI_RESPONSE_ID] = self.response_id
        if self.response_model:
            attributes[semconv.GEN_AI_RESPONSE_MODEL] = self.response_model
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


def total_of(*counts: int | None) -> int | None:
    """Return the sum of those of some counts that are stated, None if none is, or if it is no valid count."""
    stated = [count for count in counts if count is not None]
    return count_of(sum(stated)) if stated else None


def reason_of(stated: object) -> str | None:
    """Return a stated finish reason, `UNKNOWN` if it is no text; None for none, in any of its words."""
    if not stated:
        return None
    reason = text_of(stated) if isinstance(stated, str) else UNKNOWN
    word = "" if reason is None else reason.strip().lower()
    return None if word in _NO_REASONS or word.endswith(_UNSPECIFIED) else reason


def text_of(value: object) -> str | None:
    """Return a stated text, its first `MAX_TEXT` characters, None if it is empty or no text.

    JSON may escape half of a pair of surrogates: it becomes `?`, since no exporter can encode a batch that has it.
    """
    if not isinstance(value, str) or not value:
        return None
    text = value[:MAX_TEXT]
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
