"""Why a model stopped: one vocabulary for all APIs, from a span's list, by choice."""

from __future__ import annotations

import json

import pytest
from support.otlp import export, segment_span

from otel_llm import semconv
from otel_llm.formats.otlp.export_request import decode
from otel_llm.formats.spans.attributes import MAX_ITEM_CHARS
from otel_llm.formats.spans.finish_reasons import CUT, finish_reason, finish_reason_of

NAME = semconv.GEN_AI_RESPONSE_FINISH_REASONS


@pytest.mark.parametrize(
    ("stated", "ours"),
    [
        *[(word, "length") for word in ("length", "max_tokens", "MAX_TOKENS", "max_output_tokens", "model_length")],
        *[(word, "content_filter") for word in ("content_filter", "SAFETY", "refusal", "guardrail_intervened")],
        *[(word, "stop") for word in ("stop", "end_turn", "STOP", "COMPLETE", "eos_token", "stop_sequence")],
        *[(word, "tool_calls") for word in ("tool_calls", "tool_use", "TOOL_CALL", "function_call")],
        ("error", "error"),
        ("Of Tomorrow", "Of Tomorrow"),
        ("", None),
        (None, None),
    ],
)
def test_words_of_other_apis_are_openais(stated: str | None, ours: str | None) -> None:
    assert finish_reason(stated) == ours
    assert (ours in CUT) == (ours in ("length", "content_filter"))


@pytest.mark.parametrize(
    ("stated", "choice", "reason"),
    [
        (json.dumps(["stop", "MAX_TOKENS"]), 0, "stop"),
        (json.dumps(["stop", "MAX_TOKENS"]), 1, "length"),
        (json.dumps(["stop"]), 1, None),
        (json.dumps(["stop"]), -1, None),
        (json.dumps([3]), 0, None),
        (json.dumps({"0": "stop"}), 0, None),
        ("length", 0, "length"),
        ("length", 1, None),
        ("[" * 100_000, 0, "[" * 100_000),
        (7, 0, None),
    ],
)
def test_a_spans_list_is_read_by_choice(stated: str | int, choice: int, reason: str | None) -> None:
    assert finish_reason_of({NAME: stated}, choice) == reason


def test_a_span_without_them_has_none() -> None:
    assert finish_reason_of({}) is None


def test_reasons_are_words_and_are_kept_as_such() -> None:
    span = segment_span(1, 0, attributes={NAME: tuple(f"{at:03}" + "x" * 1_000_000 for at in range(8))})
    [segment] = decode(export(span)).segments
    kept = segment.attributes[NAME]
    assert isinstance(kept, str)
    assert len(kept) < 8 * (MAX_ITEM_CHARS + 8)
