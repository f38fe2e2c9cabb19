"""The size of a text: its characters by class of script, packed into one number. The sizes of texts may be added.

Text of ASCII alone is so common that its size is its length; the count of each other class is in 40 bits above it.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Final

ASCII, ALPHABET, CJK, OTHER, EMOJI = range(5)
"""The classes of script, by the first byte of a character in UTF-8.

ASCII; alphabets of two bytes; CJK, kana and Hangul; other scripts of three bytes; emoji and the rare rest.
"""
CLASSES: Final = (ASCII, ALPHABET, CJK, OTHER, EMOJI)
BITS: Final = 40
"""The bits of one class: texts of a million megabytes."""
ASCII_ALONE: Final = 1 << BITS
"""The size of a text of ASCII alone is below it."""
_MASK: Final = ASCII_ALONE - 1
_BYTES: Final = (1, 2, 3, 3, 4)
UNSIZED: Final = 1 << BITS * EMOJI
"""The size of sound, an image, or text within a form that is not known: it is estimated to be one token."""


def _class_of(first: int) -> int:
    if first < 0x80:
        return ASCII
    if first < 0xE0:
        return ALPHABET
    if first < 0xE3:
        return OTHER
    return CJK if first < 0xF0 else EMOJI


_CLASS_OF_BYTE: Final = bytes(map(_class_of, range(256)))
_NOT_FIRST: Final = bytes(range(0x80, 0xC0))


def size_of(text: str) -> int:
    """Return the size of a text, 0 for an empty one."""
    return len(text) if text.isascii() else size_of_utf8(text.encode("utf-8", "surrogatepass"))


def size_of_utf8(text: bytes) -> int:
    """Return the size of a text in UTF-8; bytes that begin no character have none."""
    if text.isascii():
        return len(text)
    classes = text.translate(_CLASS_OF_BYTE, _NOT_FIRST)
    size = 0
    for one in reversed(CLASSES):
        size = size << BITS | classes.count(one)
    return size


def size_in(member: object) -> int:
    """Return the size of a member of a chunk that may be a text: 0 for anything else."""
    return size_of(member) if isinstance(member, str) else 0


def size_of_json(value: object) -> int:
    """Return the size of a JSON value written out, 0 for an empty one; its objects may be an SDK's."""
    if not (vars(value) if hasattr(value, "__dict__") else value):
        return 0
    try:
        return size_of(json.dumps(value, default=vars, ensure_ascii=False))
    except (TypeError, ValueError, RecursionError):  # no JSON, or nested more deeply than it can be written
        return UNSIZED


def size_of_json_string(text: bytes) -> int:
    """Return the size of a text between the quotation marks of a JSON string."""
    if b"\\" in text:
        with suppress(ValueError):
            return size_of(json.loads(b'"%b"' % text, strict=False))
    return size_of_utf8(text)


def bytes_of(size: int) -> int:
    """Return the bytes of a text of this size in UTF-8: it holds no more tokens."""
    if size < ASCII_ALONE:
        return size
    return sum(count * each for count, each in zip(by_class(size), _BYTES, strict=True))


def by_class(size: int) -> tuple[int, ...]:
    """Return the characters of a size, by class."""
    return tuple(size >> BITS * one & _MASK for one in CLASSES)
