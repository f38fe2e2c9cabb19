"""Token times as CSV: a line a token (or a chunk of `tokens` of them), under a header with `request` and `t_seconds`.

`t_seconds`, `commit_s` and `end_s` are on one clock. Without `commit_s` a request begins at 0 of a clock of its own;
with it, times from the year 2001 on are unix seconds, earlier ones a clock without an anchor. A column on a request
may be filled on any of its lines; the first counts. Lines of requests may be mixed.
"""

from __future__ import annotations

import csv
import re
from array import array
from codecs import getincrementaldecoder
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from otel_llm import semconv
from otel_llm.core.limits import MAX_COUNT, MAX_TOKENS
from otel_llm.formats.assemble.resolved import Assembled, Resolved, derived_ids
from otel_llm.formats.recordings.span_parts import seconds_ns, whole_number
from otel_llm.formats.records import DecodeError, InputError
from otel_llm.formats.spans.attributes import MAX_VALUE_CHARS
from otel_llm.formats.spans.finish_reasons import finish_reason
from otel_llm.slo.classes import KINDS
from otel_llm.slo.token_events import TokenEvents

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from otel_llm.formats.io.skipped import Skipped
    from otel_llm.formats.recordings.recording_format import Head
    from otel_llm.formats.records import Attributes

REQUIRED: Final = frozenset({"request", "t_seconds"})
_ATTRIBUTES: Final = {
    "class": semconv.SLO_CLASS,
    "model": semconv.GEN_AI_REQUEST_MODEL,
    "instance": semconv.INSTANCE,
    "finish_reason": semconv.GEN_AI_RESPONSE_FINISH_REASONS,
}
_WORDS: Final = {
    "outcome": (*semconv.OUTCOMES, "lost"),
    "token_basis": semconv.TOKEN_BASES,
    "measured_at": semconv.MEASURED_AT_VALUES,
}
_COUNTS: Final = ("input_tokens", "output_tokens", "reasoning_tokens")
COLUMNS: Final = (*sorted(REQUIRED), "commit_s", "end_s", "tokens", "kind", *_COUNTS, *_ATTRIBUTES, *_WORDS)
"""The columns that are read; any other is ignored."""
_MAX_LINE_CHARS: Final = 2**17
"""The csv module's own limit for a field: the cost of a quote without an end."""
_PLAIN: Final = re.compile(r"([0-9]{1,9}|1[0-9]{9})(?:\.([0-9]{1,9}))?")
_ANCHORED_NS: Final = 10**18
"""The year 2001, in unix ns."""


def sniff(head: Head) -> bool:
    """Tell whether a file's first line names a request and its token times."""
    line = head.text.split(b"\n", 1)[0][:_MAX_LINE_CHARS].decode("utf-8", "replace")
    return _separator(line) is not None


@dataclass(slots=True)
class _Request:
    """The statements on one request in the lines read so far."""

    times: array[int] = field(default_factory=lambda: array("q"))
    kinds: bytearray = field(default_factory=bytearray)
    tokens_of: array[int] = field(default_factory=lambda: array("q"))
    tokens: int = 0
    commit_ns: int | None = None
    end_ns: int | None = None
    counts: dict[str, int] = field(default_factory=dict)
    stated: dict[str, str] = field(default_factory=dict)


def read(path: Path, chunks: Iterable[bytes], skipped: Skipped) -> Iterator[Assembled]:
    """Yield the streams of a file, in the order in which their requests first appear; wrong lines are counted.

    Memory: 17 bytes a line until the file's end, since lines of requests may be mixed.

    Raises:
        InputError: no line is right, or the header names a column twice.
    """
    lines = _lines(chunks)
    first = next((line for line in lines if line.strip()), "")
    separator = _separator(first)
    names = [] if separator is None else _names(first, separator)
    twice = [name for name in COLUMNS if names.count(name) > 1]
    if twice:
        raise InputError(f"{path}:{lines.number}: the column {twice[0]} stands there twice")
    token_line = _TokenLine(names)
    reader = csv.reader(lines, delimiter=separator or ",", strict=True)
    before = lines.number
    requests: dict[str, _Request] = {}
    refusal = ""
    while True:
        number = before + reader.line_num + 1
        try:
            cells = next(reader, None)
            if cells is None:
                break
            if cells and not token_line.take(requests, cells):
                _take(requests, _named(names, cells))
        except (DecodeError, csv.Error) as error:
            if lines.cut:
                skipped.torn(path, number)
            else:
                refusal = refusal or f"{path}:{number}: {error}"
                skipped.bad(path, number, error)
    for name, found in requests.items():
        yield _stream(name, found, skipped)
    if refusal and not requests:
        raise InputError(f"{refusal} (docs/audit-formats.md says which columns there are)")


class _TokenLine:
    """The fast path for the most frequent lines: another token of a known request, and nothing else."""

    def __init__(self, names: Sequence[str]) -> None:
        self._width = len(names)
        self._request = names.index("request") if names else 0
        self._time = names.index("t_seconds") if names else 0

    def take(self, requests: Mapping[str, _Request], cells: Sequence[str]) -> bool:
        """Add the token of such a line; return False for any other, which takes the slow path."""
        if len(cells) != self._width:
            return False
        name, written = cells[self._request], cells[self._time]
        found, digits = requests.get(name), _PLAIN.fullmatch(written)
        if found is None or digits is None or len(name) + len(written) != sum(map(len, cells)):
            return False
        if found.tokens >= MAX_TOKENS:
            return False
        found.times.append(int(digits[1]) * 10**9 + int((digits[2] or "").ljust(9, "0")))
        found.kinds.append(0)
        found.tokens_of.append(1)
        found.tokens += 1
        return True


def _named(names: Sequence[str], cells: Sequence[str]) -> dict[str, str]:
    if len(cells) != len(names):
        raise DecodeError(f"{len(cells)} columns where the header has {len(names)}")
    return {name: cell.strip() for name, cell in zip(names, cells, strict=True)}


def _take(requests: dict[str, _Request], cells: Mapping[str, str]) -> None:
    """Add one line to its request; a wrong line adds nothing."""
    try:
        "".join(cells.values()).encode()
    except UnicodeEncodeError:
        raise DecodeError("not UTF-8") from None
    name = cells["request"]
    if not 0 < len(name) <= MAX_VALUE_CHARS:
        raise DecodeError("request: expected a name")
    tokens = whole_number(cells.get("tokens") or "1", "tokens", MAX_TOKENS)
    kind = cells.get("kind") or KINDS[0]
    if kind not in KINDS:
        raise DecodeError(f"kind: expected one of {', '.join(KINDS)}")
    at_ns = seconds_ns(cells["t_seconds"], "t_seconds") if cells["t_seconds"] else None
    times = {one: seconds_ns(cells[one], one) for one in ("commit_s", "end_s") if cells.get(one)}
    counts = {one: whole_number(cells[one], one, MAX_COUNT) for one in _COUNTS if cells.get(one)}
    stated = {one: cells[one] for one in (*_ATTRIBUTES, *_WORDS) if cells.get(one)}
    for one, value in stated.items():
        if one in _WORDS and value not in _WORDS[one]:
            raise DecodeError(f"{one}: expected one of {', '.join(_WORDS[one])}")
        if len(value) > MAX_VALUE_CHARS:
            raise DecodeError(f"{one}: expected at most {MAX_VALUE_CHARS} characters")
    found = requests.get(name) or _Request()
    if found.tokens + tokens > MAX_TOKENS:
        raise DecodeError(f"more than {MAX_TOKENS} tokens in one request")
    requests[name] = found
    if at_ns is not None:
        found.times.append(at_ns)
        found.kinds.append(KINDS.index(kind))
        found.tokens_of.append(tokens)
        found.tokens += tokens
    found.commit_ns = times.get("commit_s") if found.commit_ns is None else found.commit_ns
    found.end_ns = times.get("end_s") if found.end_ns is None else found.end_ns
    found.counts = {**counts, **found.counts}
    found.stated = {**stated, **found.stated}


def _stream(name: str, found: _Request, skipped: Skipped) -> Assembled:
    commit_ns = found.commit_ns
    if commit_ns is None:
        commit_ns = 0
        skipped.anomaly("no_start_times")
    elif commit_ns < _ANCHORED_NS:
        skipped.anomaly("clock_unanchored")
    counts = None if found.tokens == len(found.times) else found.tokens_of
    kinds = bytes(found.kinds) if any(found.kinds) else None
    events = TokenEvents(found.times, kinds, counts).in_time_order()
    attributes: Attributes = {_ATTRIBUTES[one]: value for one, value in found.stated.items() if one in _ATTRIBUTES}
    outcome = found.stated.get("outcome", "completed")
    if "outcome" not in found.stated:
        skipped.anomaly("outcome_unknown")
    end_ns = found.end_ns
    if end_ns is not None and end_ns < commit_ns:
        skipped.anomaly("end_before_start")
        end_ns = None
    if end_ns is None:
        end_ns = max([commit_ns, *events.times_ns[-1:]])
    trace_id, span_id = derived_ids("csv", name, commit_ns)
    return Assembled.of(
        Resolved(
            trace_id=trace_id,
            span_id=span_id,
            choice=0,
            declared_class=found.stated.get("class"),
            attributes=attributes,
            model=found.stated.get("model"),
            instance=found.stated.get("instance"),
            measured_at=found.stated.get("measured_at", "client"),
            outcome=outcome,
            finish_reason=finish_reason(found.stated.get("finish_reason")),
            token_basis=found.stated.get("token_basis", "exact"),
            commit_ns=commit_ns,
            end_ns=end_ns,
            coverage=None if outcome == "lost" else 1.0,
            complete=True,
            known_tokens=found.tokens,
            known_until_ns=end_ns,
            input_tokens=found.counts.get("input_tokens"),
            output_tokens=found.counts.get("output_tokens"),
            reasoning_tokens=found.counts.get("reasoning_tokens"),
        ),
        events,
    )


def _names(line: str, separator: str) -> list[str]:
    try:
        return [name.strip() for name in next(csv.reader([line], delimiter=separator, strict=True), [])]
    except csv.Error:
        return []


def _separator(line: str) -> str | None:
    """Return the separator of a header's columns: a comma, a semicolon or a tab; None if it is no header."""
    line = line.strip().removeprefix("\ufeff")
    return next((one for one in ",;\t" if frozenset(_names(line, one)) >= REQUIRED), None)


class _lines:  # noqa: N801 - an iterator with a memory of where it is
    """The lines of a file as text with their ends; a line over _MAX_LINE_CHARS is cut there."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self.number = 0
        self.cut = False
        """The last line, which has no end, was returned."""
        self._ended = False
        self._chunks = iter(chunks)
        self._decoder = getincrementaldecoder("utf-8-sig")("surrogateescape")
        self._ready: Iterator[str] = iter(())
        self._rest = ""

    def __iter__(self) -> _lines:
        return self

    def __next__(self) -> str:
        while True:
            line = next(self._ready, None)
            if line is not None:
                self.number += 1
                return line
            if self._ended:
                raise StopIteration
            self._fill()

    def _fill(self) -> None:
        chunk = next(self._chunks, None)
        text = self._rest + self._decoder.decode(chunk or b"", final=chunk is None)
        *whole, self._rest = text.split("\n")
        self._rest = self._rest[: _MAX_LINE_CHARS + 1]
        if chunk is None:
            self._ended = True
            self.cut = bool(self._rest.strip())
            whole += [self._rest] if self.cut else []
        self._ready = (f"{line[: _MAX_LINE_CHARS + 1]}\n" for line in whole)
