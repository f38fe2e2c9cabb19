"""The paced server's model in memory: text to ids and back, and the next id as a function of all ids before it.

A reply can therefore be continued from its ids on any paced server, as on an engine that decodes greedily; a missing or
an extra id changes the continuation.
"""

from __future__ import annotations

from array import array
from itertools import accumulate
from typing import TYPE_CHECKING, Final
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Sequence

_SENTENCES: Final = (
    "people read while the model writes and they wait only when there is nothing left to read",
    "but a pause is felt by nobody as long as some of the text lies ahead",
    "and a server that stops for a while may be hidden by another one that goes on",
    "so what counts is the text that a reader still has and not the gap between two tokens",
    "while an average over all of them tells little about the one who waits",
    "then again somebody who reads faster is the first to look at an empty line",
)
"""The first opens every reply."""

FIRST_WORD: Final = 256
"""Ids below are the bytes of UTF-8; each word of each sentence has an id of its own."""
_WORDS: Final = tuple(f"{word} ".encode() for sentence in _SENTENCES for word in sentence.split())
_STARTS: Final = tuple(accumulate((len(sentence.split()) for sentence in _SENTENCES), initial=FIRST_WORD))
VOCABULARY: Final = FIRST_WORD + len(_WORDS)


def tokenize(text: str) -> list[int]:
    """Return an id a byte of the text; lone surrogates become `?`."""
    return list(text.encode("utf-8", "replace"))


def detokenize(ids: Sequence[int]) -> str:
    """Return the text of ids below VOCABULARY; bytes that are no UTF-8 become U+FFFD."""
    return b"".join(bytes((i,)) if i < FIRST_WORD else _WORDS[i - FIRST_WORD] for i in ids).decode("utf-8", "replace")


def chat_prompt(messages: Sequence[tuple[str, str]]) -> list[int]:
    """Return the ids of a conversation's roles and texts, up to where the assistant begins."""
    return tokenize("".join(f"{role}: {text}\n" for role, text in messages) + "assistant: ")


def next_id(ids: Sequence[int]) -> int:
    """Return the id that follows: the next word of a sentence; at its end all ids before choose the next sentence."""
    last = ids[-1] if ids else 0
    if last < FIRST_WORD:
        return FIRST_WORD
    if last + 1 not in _STARTS:
        return last + 1
    return _STARTS[crc32(array("I", ids).tobytes()) % len(_SENTENCES)]


def continuation(ids: Sequence[int], count: int) -> list[int]:
    """Return the `count` ids that follow."""
    every = list(ids)
    for _ in range(count):
        every.append(next_id(every))
    return every[len(ids) :]


def written(ids: Sequence[int]) -> int:
    """Return the number of words of a reply at the end of the ids."""
    return next((count for count, i in enumerate(reversed(ids)) if i < FIRST_WORD), len(ids))
