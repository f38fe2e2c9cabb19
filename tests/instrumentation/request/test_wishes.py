"""What a request asks of its reply: OpenAI's, Anthropic's and Gemini's ways to say it, and things that say nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from otel_llm.instrumentation.request.wishes import NO_WISHES, Wishes, wishes_of


@pytest.mark.parametrize(
    ("asked", "wishes"),
    [
        ({}, NO_WISHES),
        ({"n": 3}, Wishes(3)),
        ({"generationConfig": {"candidateCount": 2}}, Wishes(2)),
        ({"stream_options": {"include_usage": True}}, NO_WISHES),
        ({"conversation": "conv_1"}, Wishes(conversation="conv_1")),
        ({"conversation": {"id": "conv_2"}}, Wishes(conversation="conv_2")),
        ({"reasoning_effort": "high"}, Wishes(reasoning_level="high")),
        ({"reasoning": {"effort": "low"}}, Wishes(reasoning_level="low")),
        ({"output_config": {"effort": "max"}}, Wishes(reasoning_level="max")),
        ({"generationConfig": {"thinkingConfig": {"thinkingLevel": "HIGH"}}}, Wishes(reasoning_level="HIGH")),
        ({"conversation": "c" * 999}, Wishes(conversation="c" * 256)),
    ],
)
def test_what_is_asked_for(asked: dict[str, Any], wishes: Wishes) -> None:
    assert wishes_of(asked) == wishes


@pytest.mark.parametrize("odd", [None, 3, "", [], {}, True, SimpleNamespace(), object()])
def test_a_wrong_type_asks_for_nothing(odd: object) -> None:
    names = ("n", "stream_options", "conversation", "reasoning", "output_config", "generationConfig")
    found = wishes_of({**dict.fromkeys(names, odd), "reasoning_effort": odd})
    assert found.choices == 1
    assert (found.conversation, found.reasoning_level) == (None, None)
