"""What a request asks of its reply, by the JSON of its API; anything of a wrong type is not asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from otel_llm.instrumentation.segments.chunks import choices_of
from otel_llm.instrumentation.segments.statements import member, text_of

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a request asks for: the number of choices, the conversation, the level of reasoning."""

    choices: int = 1
    conversation: str | None = None
    reasoning_level: str | None = None


NO_WISHES: Final = Wishes()


def wishes_of(request: Mapping[str, Any]) -> Wishes:
    """Return the wishes of a request: the arguments of an SDK's call, or the JSON of a body.

    OpenAI's names, Anthropic's `output_config`, Gemini's `generationConfig`.
    """
    config = request.get("generationConfig")
    count = request.get("n") if config is None else member(config, "candidateCount")
    conversation = request.get("conversation")
    level = (
        text_of(request.get("reasoning_effort"))
        or text_of(member(request.get("reasoning"), "effort"))
        or text_of(member(request.get("output_config"), "effort"))
        or text_of(member(member(config, "thinkingConfig"), "thinkingLevel"))
    )
    return Wishes(
        choices_of(count),
        text_of(conversation) or text_of(member(conversation, "id")),
        level,
    )
