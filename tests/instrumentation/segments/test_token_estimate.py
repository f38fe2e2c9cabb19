"""Tokens estimated from the size of text: what a size is, when a chunk is a token, what is learned and forgotten."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_llm.instrumentation.segments.model_chunks import (
    CHARACTERS_A_TOKEN,
    MEMORY_TOKENS,
    KnownModels,
    ModelChunks,
)
from otel_llm.instrumentation.segments.text_size import (
    ALPHABET,
    ASCII,
    CJK,
    EMOJI,
    OTHER,
    UNSIZED,
    by_class,
    bytes_of,
    size_of,
    size_of_json,
    size_of_json_string,
    size_of_utf8,
)
from otel_llm.instrumentation.segments.token_estimate import MOST_A_CHUNK, TokenEstimate

CONTENT, REASONING = 0, 1


@pytest.mark.parametrize(
    ("text", "classes"),
    [
        ("", {}),
        ("plain", {ASCII: 5}),
        ("für", {ASCII: 2, ALPHABET: 1}),
        ("да нет", {ASCII: 1, ALPHABET: 5}),
        ("日本語のテキスト、", {CJK: 9}),
        ("한국어", {CJK: 3}),
        ("हिन्दी", {OTHER: 6}),
        ("ไทย", {OTHER: 3}),
        ("👍🏽 ok", {EMOJI: 2, ASCII: 3}),
        ("\ud83d", {CJK: 1}),
    ],
)
def test_a_size_is_its_characters_by_class(text: str, classes: dict[int, int]) -> None:
    found = by_class(size_of(text))
    assert {one: count for one, count in enumerate(found) if count} == classes


@given(st.lists(st.text(), max_size=6))
def test_sizes_add_up_and_bound_the_tokens(texts: list[str]) -> None:
    assert sum(map(size_of, texts)) == size_of("".join(texts))
    assert sum(by_class(size_of("".join(texts)))) == len("".join(texts))
    joined = "".join(texts).encode("utf-8", "surrogatepass")
    assert bytes_of(size_of_utf8(joined)) == len(joined)


@given(st.text(), st.booleans())
def test_the_size_of_a_json_string_is_that_of_its_text(text: str, ascii_only: bool) -> None:
    import json

    written = json.dumps(text, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    assert size_of_json_string(written[1:-1]) == size_of(text)


@given(st.binary())
def test_bytes_that_are_no_text_have_a_size_no_larger_than_they_are(data: bytes) -> None:
    assert 0 <= sum(by_class(size_of_utf8(data))) <= len(data)
    assert size_of_json_string(data) >= 0


def test_an_empty_json_value_has_no_size() -> None:
    empty: list[object] = [None, {}, [], ""]
    assert [size_of_json(value) for value in empty] == [0, 0, 0, 0]
    assert size_of_json({"a": 1}) == len('{"a": 1}')


def estimate(model: ModelChunks | None = None) -> TokenEstimate:
    return TokenEstimate(model or ModelChunks())


def test_short_chunks_are_one_token_each() -> None:
    found = estimate()
    assert found.counts(CONTENT, [1, 4, 5, 2, 7, 3, 4, 6, 5, 4]) == [1] * 10
    assert (found.one_each, found.basis("chunk"), found.basis("exact")) == (True, "chunk", "exact")


def test_a_long_chunk_is_estimated_at_once() -> None:
    found = estimate()
    assert found.counts(CONTENT, [370]) == [100]
    assert found.basis("chunk") == "estimated"


def test_the_first_chunks_are_one_token_each_unless_they_are_long() -> None:
    found = estimate()
    counts = found.counts(CONTENT, [10] * 20)  # 2.7 tokens each
    assert counts[:8] == [1] * 8
    assert sum(counts[8:]) == pytest.approx(12 * 10 / 3.7, abs=1)


@given(st.lists(st.integers(1, 400), min_size=1, max_size=60))
def test_the_sum_stays_within_one_token_of_the_estimate(sizes: list[int]) -> None:
    model = ModelChunks()
    model.learn(10_000, 10, 2_700)  # its chunks are no tokens
    found = estimate(model)
    counts = found.counts(REASONING, sizes)
    rate = model.tokens_a_character()[ASCII]
    total = 0.0
    for place, size in enumerate(sizes):
        total += size * rate
        assert 0 <= sum(counts[: place + 1]) - total < 1
    assert counts[0] >= 1


def test_kinds_are_rounded_by_themselves() -> None:
    model = ModelChunks()
    model.learn(10_000, 10, 2_700)
    found = estimate(model)
    assert [found.of(REASONING, -1), found.of(REASONING, -1), found.of(CONTENT, -1)] == [1, 0, 1]


def test_a_count_of_the_server_is_itself() -> None:
    assert estimate().of(CONTENT, 7) == 7


def test_sound_is_one_token_a_chunk() -> None:
    assert estimate().counts(CONTENT, [UNSIZED] * 30) == [1] * 30


def test_one_character_a_chunk_is_counted_down_once_it_is_known() -> None:
    model = ModelChunks()
    first = estimate(model)
    assert sum(first.counts(CONTENT, [1] * 370)) == 370
    first.learn(370, 100)
    second = estimate(model)
    assert (second.learned, first.learned) == (True, False)
    assert sum(second.counts(CONTENT, [1] * 370)) == pytest.approx(100, abs=8)


def test_chunks_that_were_shown_to_be_tokens_stay_tokens_when_they_are_long() -> None:
    model = ModelChunks()
    model.learn(6 * 500, 500, 501)
    assert estimate(model).counts(CONTENT, [6] * 40) == [1] * 40, "1.6 tokens each, for another model"


def test_a_ratio_is_learned_and_one_short_reply_does_not_upset_it() -> None:
    model = ModelChunks()
    for _ in range(20):
        model.learn(2_500, 20, 1_000)  # 2.5 characters a token
    learned = 1 / model.tokens_a_character()[ASCII]
    assert learned == pytest.approx(2.5, rel=0.02)
    model.learn(40, 1, 9)
    assert 1 / model.tokens_a_character()[ASCII] == pytest.approx(learned, rel=0.01)
    assert model.one_each is False


def test_what_was_learned_fades() -> None:
    model = ModelChunks()
    for _ in range(20):
        model.learn(2_500, 20, 1_000)
    for _ in range(10 * MEMORY_TOKENS // 1_000):
        model.learn(4_000, 1_000, 1_000)
    assert 1 / model.tokens_a_character()[ASCII] == pytest.approx(4.0, rel=0.01)
    assert model.one_each is True


@pytest.mark.parametrize("tokens", [1, 2**31 - 1])
def test_a_total_that_no_tokenizer_gives_teaches_no_ratio(tokens: int) -> None:
    model = ModelChunks()
    model.learn(370, 10, tokens)
    assert model.tokens_a_character()[ASCII] == pytest.approx(1 / CHARACTERS_A_TOKEN[ASCII])


def test_scripts_are_learned_by_themselves() -> None:
    model = ModelChunks()
    for _ in range(20):
        model.learn(size_of("天地玄黄宇宙洪荒" * 100 + "ok"), 50, 600)
    rates = model.tokens_a_character()
    assert 1 / rates[CJK] == pytest.approx(8 / 6, rel=0.02)
    assert rates[ASCII] == pytest.approx(1 / CHARACTERS_A_TOKEN[ASCII])


def test_a_mixture_teaches_no_ratio() -> None:
    model = ModelChunks()
    model.learn(size_of("да" * 100 + "plain" * 40), 50, 400)
    assert model.tokens_a_character() == tuple(pytest.approx(1 / each) for each in CHARACTERS_A_TOKEN)


def test_the_models_that_were_not_used_for_longest_are_forgotten() -> None:
    known = KnownModels(most=3)
    kept = known.of("here", "kept")
    for number in range(10):
        known.of("here", f"other {number}")
        assert known.of("here", "kept") is kept
    assert known.of("there", "kept") is not kept


def test_it_is_close_for_bursts_of_words() -> None:
    chance = random.Random(7)
    words = [chance.choice((2, 3, 4, 5, 6, 7, 8)) + 1 for _ in range(600)]  # 5.5 characters with the space: 1.5 tokens
    found = estimate()
    sizes = []
    while words:
        count = chance.randrange(2, 6)
        sizes.append(sum(words[:count]))
        del words[:count]
    truth = sum(sizes) / 3.7
    assert sum(found.counts(CONTENT, sizes)) == pytest.approx(truth, rel=0.05)


def test_a_chunk_of_ten_megabytes_has_a_bounded_number_of_tokens() -> None:
    assert estimate().counts(CONTENT, [10_000_000, 1, 37]) == [MOST_A_CHUNK, 1, 10]


def test_a_model_whose_replies_state_other_lengths_after_learning_is_named() -> None:
    known = KnownModels()
    model = known.of("host", "m")
    first = estimate(model)
    recorded = sum(first.counts(CONTENT, [37] * 20))
    first.learn(recorded, 200)
    for number in range(6):
        assert bool(known.off()) == (number == 5), "not before five replies"
        later = estimate(model)
        later.learn(sum(later.counts(CONTENT, [37] * 20)), 90)
    [(server, name, times)] = known.off()
    assert (server, name) == ("host", "m")
    assert times < 0.75
