"""What a form of recording is: how a file's first bytes tell it, and how it is read.

A form is a module with two functions: `sniff(head)` says whether a file holds it, `read(path, chunks, skipped)` yields
what it holds: export requests for spans, `Assembled` streams for what is not spans.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from otel_llm.readers.io.json_walk import key_paths

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from otel_llm.readers.assemble.resolved import Assembled
    from otel_llm.readers.io.skipped import RawRecord, Received, Skipped

EXPECTED: Final = (
    "expected a journal, OTLP, Jaeger, Tempo or ClickHouse traces, Parquet of token times, the result of a benchmark"
    " tool, or CSV with the columns request and t_seconds; plain, gzip or zstd (docs/audit-forms.md)"
)
LOOK_BYTES: Final = 256 * 2**10
"""How much of a file is looked at to tell its form: benchmark tools write their settings before the times."""


@dataclass(frozen=True)
class Head:
    """The first bytes of a file, decompressed: LOOK_BYTES of it, or all there is."""

    raw: bytes

    @cached_property
    def text(self) -> bytes:
        """Return the bytes without a byte order mark and leading blanks."""
        return self.raw.removeprefix(b"\xef\xbb\xbf").lstrip()

    @cached_property
    def keys(self) -> frozenset[str]:
        """Return where keys stand in the first JSON value, six brackets deep: `data`, `data[].traceID`.

        None if it is no JSON. A file's first line is its first value; an array's elements are `[]`: `[].start_time`.
        The look is bounded: a key behind LOOK_BYTES is not seen.
        """
        return key_paths(self.text) if self.text[:1] in (b"{", b"[") else frozenset()


class Sniff(Protocol):
    """Say whether a file that begins so holds the form."""

    def __call__(self, head: Head, /) -> bool: ...  # noqa: D102


class Read(Protocol):
    """Yield what a file of the form holds.

    `path` names it in messages (`-` is standard input); `chunks` are its bytes, decompressed, from the first on.
    A broken part is counted in `skipped` and costs itself; `InputError` says that nothing of the file can be read.
    """

    def __call__(  # noqa: D102
        self, path: Path, chunks: Iterable[bytes], skipped: Skipped, /
    ) -> Iterator[RawRecord | Received | Assembled]: ...


class Form(NamedTuple):
    """A form of recording: its name in messages, and its two functions."""

    name: str
    sniff: Sniff
    read: Read
