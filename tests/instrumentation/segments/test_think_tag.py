"""Thinking in the text of a reply: told from the answer however the text is cut, and only at its beginning."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_llm.export.records import CONTENT, REASONING
from otel_llm.instrumentation.segments.chunks import ThinkTag


def read(*texts: str) -> list[tuple[int, str]]:
    tag = ThinkTag()
    return [part for text in texts for part in tag.parts(text)]


def joined(*texts: str) -> tuple[str, str]:
    """Return the thinking and the answer."""
    found = read(*texts)
    thought, answer = ("".join(text for kind, text in found if kind == one) for one in (REASONING, CONTENT))
    return thought, answer


@pytest.mark.parametrize(
    ("texts", "thought", "answer"),
    [
        (["<think>", "hm", "</think>", "Hello"], "<think>hm</think>", "Hello"),
        (["\n", "<think>", "hm", "</think>", "\n\nHello"], "<think>hm</think>", "\n\n\nHello"),
        (["<think>a</think>b<think>c</think>"], "<think>a</think>", "b<think>c</think>"),
        (["<th", "ink>a</th", "in", "k>b"], "<think>a</think>", "b"),
        (["<think>a</", "b</think>c"], "<think>a</b</think>", "c"),
        (["<think></think>", ""], "<think></think>", ""),
        (["Hello <think>a</think>"], "", "Hello <think>a</think>"),
        (["<", "p>Hello"], "", "<p>Hello"),
        (["<thing>", "a"], "", "<thing>a"),
        (["</think>a"], "", "</think>a"),
        (["<think>never ends", " at all"], "<think>never ends at all", ""),
        (["<Think>a"], "", "<Think>a"),
    ],
)
def test_thinking_is_told_by_its_tags(texts: list[str], thought: str, answer: str) -> None:
    assert joined(*texts) == (thought, answer)


@given(
    st.text("a<>/thinkb \n", max_size=12).filter(lambda text: "</think>" not in text),
    st.text("a<>/think", max_size=12),
    st.lists(st.integers(1, 40), max_size=8),
)
def test_the_kinds_do_not_depend_on_where_the_text_is_cut(thought: str, answer: str, cuts: list[int]) -> None:
    whole = f"<think>{thought}</think>{answer}"
    at = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    pieces = [whole[first:last] for first, last in pairwise(at)]
    found = joined(*pieces)
    if len(pieces) > 1 and len(pieces[0]) == 1:
        found = (pieces[0] + found[0], found[1][1:])  # a single `<` is not yet taken for a tag
    assert found == (f"<think>{thought}</think>", answer)


def test_a_reply_whose_first_text_is_another_kind_has_no_tags() -> None:
    tag = ThinkTag()
    tag.end()
    assert tag.parts("<think>a") == [(CONTENT, "<think>a")]
    assert tag.over
