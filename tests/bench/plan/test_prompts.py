"""Prompts: a function of spec and number, of the wanted length, without shared prefixes."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from otel_llm.bench.plan.prompts import HEAD_WORDS, WORDS, PromptLengths, Prompts, PromptSpec


def _shared(one: str, other: str) -> int:
    """Return the number of words with which both begin."""
    count = 0
    for left, right in zip(one.split(), other.split(), strict=False):
        if left != right:
            break
        count += 1
    return count


def test_the_words_number_the_prompts() -> None:
    assert len(set(WORDS)) == len(WORDS) == 256


@settings(max_examples=examples(50))
@given(
    seed=st.integers(0, 2**63 - 1),
    salt=st.integers(0, 2**38),
    first=st.integers(-10, 10**6),
    words=st.integers(HEAD_WORDS, 40),
)
def test_neighbouring_prompts_differ_in_their_first_word(seed: int, salt: int, first: int, words: int) -> None:
    prompts = Prompts(PromptSpec(seed, salt=salt))
    texts = [prompts.text(first + place, words) for place in range(8)]
    assert all(len(text.split()) == words for text in texts)
    assert all(_shared(one, other) == 0 for one, other in pairwise(texts))
    assert texts[0] == Prompts(PromptSpec(seed, salt=salt)).text(first, words)


def test_any_two_prompts_differ_within_their_head() -> None:
    prompts = Prompts(PromptSpec(1))
    base = prompts.text(0, 32)
    shared = [_shared(base, prompts.text(256**digit, 32)) for digit in range(HEAD_WORDS)]
    assert shared == list(range(HEAD_WORDS))


def test_a_shared_prefix_and_no_more() -> None:
    prompts = Prompts(PromptSpec(1, shared_prefix=20))
    one, other = prompts.text(0, 50), prompts.text(1, 50)
    assert _shared(one, other) == 20
    assert len(one.split()) == 50


def test_another_salt_gives_other_prompts() -> None:
    one, other = (Prompts(PromptSpec(1, salt=salt)).text(0, 32) for salt in (0, 1))
    assert _shared(one, other) == 0


def test_lengths_by_the_words_that_were_learned() -> None:
    lengths = PromptLengths(fixed=10.0, per_word=1.25)
    assert lengths.words(110) == 80
    assert lengths.words(3) == 1
    assert len(Prompts(PromptSpec(1, lengths)).text(0, 110).split()) == 80


def test_a_prompt_longer_than_the_text_that_was_drawn() -> None:
    assert len(Prompts(PromptSpec(1)).text(5, 200_000).split()) == 200_000
