"""The ratio of recorded and stated tokens: a histogram by model, and one sentence on a model that is off."""

from __future__ import annotations

import pytest

from otel_llm.live.exposition import text_of
from otel_llm.live.stated_replies import MOST_SETS, StatedReplies
from otel_llm.slo.stated_total import StatedReply


def reply(recorded: int, tokens: int, *, model: str = "m", learned: bool = True) -> StatedReply:
    return StatedReply(model, "openai", recorded, tokens, learned)


def samples(replies: StatedReplies) -> dict[str, float]:
    lines = text_of(replies.families()).decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def test_the_histogram_has_the_recorded_tokens_over_the_stated_ones() -> None:
    replies = StatedReplies()
    for recorded in (100, 60, 300):
        assert replies.add(reply(recorded, 100, learned=False)) is None
    found = samples(replies)
    labels = 'model="m",provider="openai"'
    assert found[f"otel_llm_token_estimate_ratio_count{{{labels}}}"] == 3
    assert found[f"otel_llm_token_estimate_ratio_sum{{{labels}}}"] == pytest.approx(4.6)
    at = {bound: found[f'otel_llm_token_estimate_ratio_bucket{{le="{bound}",{labels}}}'] for bound in ("0.75", "1.01")}
    assert at == {"0.75": 1, "1.01": 2}


def test_a_model_that_is_off_after_learning_is_named_once_with_the_remedy() -> None:
    replies = StatedReplies()
    reported = [replies.add(reply(100, 140)) for _ in range(9)]
    assert [one is not None for one in reported] == [False] * 4 + [True] + [False] * 4
    [note] = replies.notes
    assert note == reported[4]
    assert note.startswith("m at openai: replies state 1.4 times the tokens that are recorded")
    assert "continuous_usage_stats" in note


@pytest.mark.parametrize(("recorded", "learned"), [(80, True), (124, True), (20, False), (900, False)])
def test_a_small_difference_and_one_before_learning_are_no_news(recorded: int, learned: bool) -> None:
    replies = StatedReplies()
    for _ in range(20):
        assert replies.add(reply(recorded, 100, learned=learned)) is None
    assert replies.notes == []


def test_model_names_cannot_fill_the_memory() -> None:
    replies = StatedReplies()
    for number in range(500):
        for _ in range(9):
            replies.add(reply(100, 140, model=f"m{number}"))
        replies.add(reply(100, 140, model="m0"))
    counts = {name: value for name, value in samples(replies).items() if "_count" in name}
    assert len(counts) == len(replies.notes) == MOST_SETS
    assert counts['otel_llm_token_estimate_ratio_count{model="m0",provider="openai"}'] == 509
    assert counts['otel_llm_token_estimate_ratio_count{model="m499",provider="openai"}'] == 9
    assert replies.gave_way == 500 - MOST_SETS


def test_a_model_that_is_not_listed_takes_no_place() -> None:
    replies = StatedReplies()
    for _ in range(9):
        assert replies.add(StatedReply("other", "other", 100, 140, learned=True)) is None
    for number in range(MOST_SETS):
        replies.add(reply(100, 140, model=f"m{number}"))
    assert len([name for name in samples(replies) if "_count" in name]) == MOST_SETS + 1
    assert replies.gave_way == 0


def test_a_tenants_models_leave_room_for_anothers() -> None:
    replies = StatedReplies()
    replies.add(reply(100, 140, model="honest")._replace(tenant="shop"))
    for number in range(500):
        replies.add(reply(100, 140, model=f"m{number}"))
    assert samples(replies)['otel_llm_token_estimate_ratio_count{model="honest",provider="openai"}'] == 1
