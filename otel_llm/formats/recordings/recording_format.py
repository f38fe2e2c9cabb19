"""The interface of a format of recording: sniff a file's first bytes, and read it.

A format is a module with two functions: `sniff(head)` tells whether a file is of this format, `read(path, chunks,
skipped)` yields its contents: export requests for spans, `Assembled` streams for anything else.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_llm.formats.io.json_values import key_paths
from otel_llm.formats.records import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from otel_llm.formats.assemble.resolved import Assembled
    from otel_llm.formats.io.skipped import RawRecord, Received, Skipped

EXPECTED: Final = (
    "expected a journal, OTLP, Jaeger, Tempo or ClickHouse traces, Parquet of token times, the result of a benchmark"
    " tool, or CSV with the columns request and t_seconds; plain, gzip or zstd (docs/audit-formats.md)"
)
HEAD_BYTES: Final = 256 * 2**10
"""How much of a file is sniffed: benchmark tools write their settings before the times."""


def all_broken(path: Path, skipped: Skipped, notes_before: int) -> InputError:
    """Return the error of a file without a good part; its first broken part is the note after `notes_before`."""
    first = "".join(f"; {note}" for note in skipped.notes[notes_before : notes_before + 1])
    return InputError(f"{path}: not a recording: {EXPECTED}{first}")


@dataclass(frozen=True)
class Head:
    """The first bytes of a file, decompressed: HEAD_BYTES of it, or all of it."""

    raw: bytes

    @cached_property
    def text(self) -> bytes:
        """Return the bytes without a byte order mark and leading blanks."""
        return self.raw.removeprefix(b"\xef\xbb\xbf").lstrip()

    @cached_property
    def keys(self) -> frozenset[str]:
        """Return the paths of keys in the first JSON value, six brackets deep: `data`, `data[].traceID`.

        Empty if it is no JSON. A file's first line is its first value; an array's elements are `[]`: `[].start_time`.
        Values are not in it. Only the head is read: a key after HEAD_BYTES is not seen.
        """
        return key_paths(self.text) if self.text[:1] in (b"{", b"[") else frozenset()

    @cached_property
    def own_keys(self) -> frozenset[str]:
        """Return `keys` of a record, be it the file's first value or the elements of the array that it is."""
        if not self.text.startswith(b"["):
            return self.keys
        return frozenset(key.removeprefix("[].") for key in self.keys)


def read_head(chunks: Iterable[bytes]) -> tuple[Head, Iterator[bytes]]:
    """Return the first bytes of chunks as a head, and all of the chunks."""
    rest, begun, wanted = iter(chunks), [], HEAD_BYTES
    for chunk in rest:
        begun.append(chunk)
        wanted -= len(chunk)
        if wanted <= 0:
            break
    return Head(b"".join(begun)[:HEAD_BYTES]), chain(begun, rest)


class Format(NamedTuple):
    """A format of recording: its name in messages, its two functions, and whether a file may have several runs.

    `sniff` tells by a file's head whether it is of the format. `read` yields the contents of a file: the path names it
    in messages (`-` is standard input), its bytes are given in chunks, decompressed, from the first on. A broken part
    is counted in `Skipped` and left out; an InputError says that nothing of the file can be read. A file whose parts
    are all broken is refused as "not a recording", with the first broken part (`all_broken`).

    A file that no `sniff` accepts is refused; one that begins as a JSON object is tried as OTLP first ("not OTLP JSON:
    no resourceSpans").
    """

    name: str
    sniff: Callable[[Head], bool]
    read: Callable[[Path, Iterable[bytes], Skipped], Iterator[RawRecord | Received | Assembled]]
    has_runs: bool = False
