"""Open a file and tell its form by its first bytes."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING

from otel_llm.readers.formats.form_table import LOOK_BYTES, Form, Head, known_forms
from otel_llm.readers.io.bytestream import MOST_EXPANSION, open_chunks
from otel_llm.readers.io.skipped import Skipped
from otel_llm.readers.otlp.otlp_files import is_journal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def form_of(path: Path) -> Form | None:
    """Return the form that a file holds; None if it is none that we know.

    Raises:
        InputError: it cannot be read.
    """
    return told(open_head(path, Skipped())[0])


def told(head: Head) -> Form | None:
    """Return the form of a file that begins so; None if it is none that we know."""
    return next((form for form in known_forms() if form.looks(head)), None)


def open_head(path: Path, skipped: Skipped) -> tuple[Head, Iterator[bytes]]:
    """Return the first bytes of a file and all of its bytes, decompressed; where that fails is counted.

    Raises:
        InputError: it cannot be read.
    """

    def lost(reason: str, offset: int) -> None:
        skipped.add(reason, f"{path}: {reason} of the compressed file at byte {offset}")

    most_expansion = None if is_journal(path) else MOST_EXPANSION
    chunks = open_chunks(path, Counter(), lost, most_expansion=most_expansion)
    pieces: list[bytes] = []
    wanted = LOOK_BYTES
    for chunk in chunks:
        pieces.append(chunk)
        wanted -= len(chunk)
        if wanted <= 0:
            break
    return Head(b"".join(pieces)[:LOOK_BYTES]), chain(pieces, chunks)
