"""Shared parts of the parsers of benchmark tools' result files: numbers as the tools write them, a request's stream.

A result file has each request as its client saw it. Its clock is often not the wall clock, and the number of tokens in
a chunk or the time of a failure may be missing: what a file does not state stays unknown.
"""

from __future__ import annotations

import json
import math
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otel_llm import semconv
from otel_llm.core.limits import MAX_TIME_NS
from otel_llm.formats.assemble.resolved import Assembled, Resolved, derived_ids
from otel_llm.formats.foreign.foreign_spans import Foreign
from otel_llm.formats.io.bytestream import open_chunks
from otel_llm.formats.io.json_values import END, items, load
from otel_llm.formats.io.skipped import Skipped
from otel_llm.formats.records import DecodeError, InputError
from otel_llm.slo.token_events import NO_EVENTS, TokenEvents

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from pathlib import Path

NS_PER_S: Final = 1_000_000_000
_NUMBERS: Final = frozenset({float, int})
_SIBLING_BYTES: Final = 4 * 2**20


class EntryError(ValueError):
    """One request of a result file cannot be used; the others can."""


def nanoseconds(value: Any, name: str, unit_ns: int = NS_PER_S) -> int:
    """Return a time of `unit_ns` (seconds by default) as ns.

    Raises:
        EntryError: it is no number, or out of range.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise EntryError(f"{name} is no number of seconds" if unit_ns == NS_PER_S else f"{name} is no number")
    if not -MAX_TIME_NS <= value * unit_ns <= MAX_TIME_NS:
        raise EntryError(f"{name} is out of range")
    return value * unit_ns if isinstance(value, int) else round(value * unit_ns)


def arrivals(start_ns: int, first: Any, gaps: Any, names: tuple[str, str], unit_ns: int = NS_PER_S) -> list[int]:
    """Return the arrival of each chunk, ns: the first so long after `start_ns`, each other a gap after the one before.

    The gaps are added up as they were measured, and rounded to ns once.

    Raises:
        EntryError: a gap is no number, or below zero.
    """
    first_ns = nanoseconds(first, names[0], unit_ns)
    measured = _doubles(gaps)
    if not isinstance(measured, array):
        raise EntryError(
            f"{names[1]} is no list" if not isinstance(gaps, list) else f"{names[1]} has a gap that is none"
        )
    if not measured:
        return [start_ns + first_ns]
    between = np.frombuffer(measured, np.float64)
    with np.errstate(over="ignore"):
        after = np.cumsum(np.concatenate([[float(first)], between]))
    if not between.min() >= 0 or not float(after[-1]) * unit_ns <= MAX_TIME_NS:
        raise EntryError(f"{names[1]} has a gap that is none, or is out of range")
    every: list[int] = (np.rint(after * unit_ns).astype(np.int64) + start_ns).tolist()
    return every


def chunk_arrivals(start_ns: int, first: Any, gaps: Any, names: tuple[str, str]) -> list[int]:
    """Return the arrival of each chunk as `arrivals` does, of seconds; none if the first is 0 and there are no gaps.

    The tools write a request without a reply so. Null stands for no gaps.

    Raises:
        EntryError: a gap is no number, or below zero.
    """
    gaps = [] if gaps is None else gaps
    nothing = nanoseconds(first, names[0]) == 0 and isinstance(gaps, list | array) and not gaps
    return [] if nothing else arrivals(start_ns, first, gaps, names)


def count(value: Any) -> int | None:
    """Return a number of tokens as a file states it, None if it is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62 else None


def lasted(value: Any, unit_s: float = 1.0) -> float | None:
    """Return a duration of `unit_s` that a server states of its own, in seconds, None if it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value * unit_s if 0 <= value <= MAX_TIME_NS / NS_PER_S else None


def text(value: Any) -> str | None:
    """Return a text that is not empty, else None."""
    return value if isinstance(value, str) and value else None


def member(value: Any, *names: str) -> Any:
    """Return the value of an object of objects under these names, None if any of them is missing."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def json_of(value: Any) -> Any:
    """Return the JSON value of a text, None if it is no text or no JSON."""
    if not isinstance(value, str):
        return None
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


def stated_load(rate: Any) -> float | None:
    """Return a load in requests/s as a file states it, None if it is none: `inf`, a trace, a closed loop."""
    known = isinstance(rate, int | float) and not isinstance(rate, bool) and 0 < rate < math.inf
    return float(rate) if known else None


def operation_of(payload: Any) -> str | None:
    """Return the GenAI operation that a request's body asks for, None if it is no chat's."""
    return "chat" if isinstance(member(payload, "messages"), list) else None


@dataclass(frozen=True, slots=True)
class MeasuredRequest:
    """The statements of a result file on a request beside its tokens; times are unix ns, or ns on the file's own axis.

    `own_id` identifies it within the format; `send_ns` is None if the file has no time of sending, `end_ns` if it does
    not state the request's end. `output_tokens`: what the server counted, reasoning included; `reasoning_tokens`: that
    part of them. Both are None if it counted none, or if the request has several choices.
    """

    file_format: str
    own_id: object
    send_ns: int | None
    commit_ns: int
    end_ns: int | None
    outcome: str
    model: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    operation: str | None = None
    queue_s: float | None = None
    """The time in the server's queue, if it says it."""
    prefill_s: float | None = None
    """The time that the server took for the prompt, if it says it."""

    def timed(self, events: TokenEvents, token_basis: str, *, choice: int = 0) -> Assembled:
        """Return its stream with these token events.

        `token_basis` is what a time stands for: `exact` a token, `chunk` a chunk of unknown size, `estimated` a token
        by the client's own tokenizer. Without `end_ns` the stream is not judged, except that a failed reply missed its
        deadlines; the parser counts the anomaly `end_unknown`.

        Raises:
            EntryError: a time is out of the range of records.
        """
        if events.kinds is not None and not any(events.kinds):
            events = events._replace(kinds=None)
        events = events.in_time_order()
        times_ns = events.times_ns
        resolved = self._resolved(*times_ns[:1], *times_ns[-1:])
        resolved.choice = choice
        resolved.token_basis = token_basis
        resolved.coverage = None if self.end_ns is None else 1.0
        resolved.complete = self.end_ns is not None
        resolved.known_tokens = events.tokens
        last_ns = times_ns[-1] if times_ns else self.commit_ns
        resolved.known_until_ns = last_ns if self.end_ns is None else self.end_ns
        return Assembled.of(resolved, events)

    def untimed(self, ttft_s: float | None = None) -> Assembled:
        """Return its stream if the file does not hold the token times.

        Raises:
            EntryError: a time is out of the range of records.
        """
        resolved = self._resolved()
        e2e_s = None if self.end_ns is None else max(0, self.end_ns - self.commit_ns) / NS_PER_S
        resolved.foreign = Foreign(
            ttft_s=ttft_s, e2e_s=e2e_s, tokens=0, expected=0, token_basis=None, measured_at="client"
        )
        return Assembled.of(resolved, NO_EVENTS)

    def _resolved(self, *token_times_ns: int) -> Resolved:
        for time_ns in (self.commit_ns, self.end_ns, *token_times_ns):
            if time_ns is not None and not -MAX_TIME_NS <= time_ns <= MAX_TIME_NS:
                raise EntryError("a time is out of range")
        trace_id, span_id = derived_ids(self.file_format, self.own_id, self.send_ns)
        attributes = {semconv.GEN_AI_REQUEST_MODEL: self.model, semconv.GEN_AI_OPERATION_NAME: self.operation}
        return Resolved(
            trace_id=trace_id,
            span_id=span_id,
            choice=0,
            attributes={name: value for name, value in attributes.items() if value is not None},
            model=self.model,
            measured_at="client",
            outcome=self.outcome,
            commit_ns=self.commit_ns,
            end_ns=self.end_ns,
            input_tokens=self.input_tokens,
            output_tokens=self.output_tokens,
            reasoning_tokens=self.reasoning_tokens,
            queue_s=self.queue_s,
            prefill_s=self.prefill_s,
        )


def runs(path: Path, chunks: Iterable[bytes], skipped: Skipped, lists: Collection[str]) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file of parallel arrays, one for each run of the benchmark; an array of runs is read too.

    `lists` are the arrays of arrays of numbers: they are read element by element, and numbers are kept as arrays of
    doubles, so that a run takes 8 bytes a token. The texts of models are dropped. A run that the file's end cuts is
    counted as torn, and not yielded.
    """
    run: dict[str, Any] = {}
    entered = {"generated_texts", *lists}
    for item in items(path, chunks, skipped, {"", "[]", *entered, *(f"[].{name}" for name in entered)}):
        name = item.path.removeprefix("[]").removeprefix(".")
        if name == "":
            if item.value is END:
                yield run
            run = {}
        elif name in lists:
            run[name] = item.value  # no array at all
        elif name.endswith("[]"):
            if name[:-2] in lists:
                run.setdefault(name[:-2], []).append(_doubles(item.value))
        else:
            run[name] = item.value


def run_streams(
    path: Path,
    chunks: Iterable[bytes],
    skipped: Skipped,
    lists: Collection[str],
    *,
    entries: Callable[[dict[str, Any]], list[dict[str, Any]]],
    build: Callable[[dict[str, Any], int, dict[str, Any]], Assembled],
    clock: Callable[[dict[str, Any]], str],
    failures: str | None = None,
) -> Iterator[Assembled]:
    """Yield the requests of every run in a file, in order of dispatch.

    `entries` gives a run's requests, `build` the stream of one by its index; one that either refuses (EntryError) is
    counted and left out. `clock` gives the anomaly of all times of a run. `failures`: the key of the run's number of
    failed requests, which must agree with the requests.

    Raises:
        InputError: no run of the file has the times of its requests.
    """
    refusal, readable = "", 0
    for number, run in enumerate(runs(path, chunks, skipped, lists), 1):
        try:
            requests = entries(run)
        except EntryError as error:
            refusal = refusal or str(error)
            skipped.bad(path, f"run {number}", error)
            continue
        readable += 1
        wanted = skipped.wants_run(path)
        skipped.end_run(path, stated_load(run.get("request_rate")))
        if not wanted:
            continue
        failed = 0
        for index, entry in enumerate(requests):
            try:
                one = build(run, index, entry)
            except EntryError as error:
                skipped.bad(path, f"run {number}, request {index}", error)
                continue
            failed += one.resolved.outcome != "completed"
            skipped.anomaly(clock(run))
            if one.resolved.end_ns is None:
                skipped.anomaly("end_unknown")
            yield one
        expected = None if failures is None else count(run.get(failures))
        if expected is not None and expected != failed:
            skipped.anomaly("failures_do_not_add_up", abs(expected - failed))
    if refusal and not readable:
        raise InputError(f"{path}: {refusal}")


def entries_of(run: Mapping[str, Any], names: Collection[str], rows: int) -> list[dict[str, Any]]:
    """Return the parallel arrays of a run as one object for each of `rows` requests; a missing array is of nulls.

    Raises:
        EntryError: one is no array, or has another number of entries, so that entries cannot be matched.
    """
    columns: list[list[Any]] = []
    for name in names:
        values = run.get(name)
        if values is None:
            values = [None] * rows
        elif not isinstance(values, list) or len(values) != rows:
            held = len(values) if isinstance(values, list) else "no"
            raise EntryError(f"{name} has {held} entries for {rows} requests")
        columns.append(values)
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def sibling(path: Path, name: str) -> Any:
    """Return the JSON value in the file `name` beside `path`, None if there is none that can be read."""
    beside = path.with_name(name)
    if str(path) == "-" or not beside.is_file() or beside.stat().st_size > _SIBLING_BYTES:
        return None
    try:
        return load(b"".join(open_chunks(beside, Skipped().counts)))
    except (DecodeError, InputError):
        return None


def _doubles(values: Any) -> Any:
    """Return a list of numbers as an array of doubles; anything else as it is."""
    if not isinstance(values, list) or not _NUMBERS.issuperset(map(type, values)):
        return values
    try:
        return array("d", values)
    except OverflowError:
        return values
