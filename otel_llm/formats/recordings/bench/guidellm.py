"""`benchmarks.json` of GuideLLM: the times of each request's first and last token, and no others.

Format: GuideLLM 0.8.1, report version 2. Wall clock, seconds. Times between are not stored, so the rows have the time
to the first token and the end, and every judged column is null. The commit is `targeted_start`, when the request was
due; a later turn of a conversation is due no earlier than its delay after the turn before. A benchmark's warm-up and
cool-down are left out by GuideLLM's own rule: requests that end before the time that it measured, or begin after it.
With a `sample_size` the file has all totals and some requests.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from otel_llm.core.limits import MAX_TIME_NS
from otel_llm.formats.io.json_values import END, items
from otel_llm.formats.recordings.bench.measured import (
    NS_PER_S,
    EntryError,
    MeasuredRequest,
    count,
    json_of,
    member,
    nanoseconds,
    stated_load,
    text,
)
from otel_llm.formats.records import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from otel_llm.formats.assemble.resolved import Assembled
    from otel_llm.formats.io.skipped import Skipped
    from otel_llm.formats.recordings.recording_format import Head

FORM: Final = "guidellm"
_BENCHMARK: Final = "benchmarks[]"
_LISTS: Final = {f"{_BENCHMARK}.requests.{name}[]": name for name in ("successful", "errored", "incomplete")}
_ENTERED: Final = frozenset(
    {"", "benchmarks", _BENCHMARK, f"{_BENCHMARK}.requests", *(path.removesuffix("[]") for path in _LISTS)}
)
_OUTCOMES: Final = {"completed": "completed", "errored": "error", "cancelled": "cancelled"}
_ENDINGS: Final = {"successful": "completed", "errored": "error", "incomplete": "cancelled"}
_DELAY: Final = "requeue_delay"
_SEEN_WITHIN_NS: Final = 20_000_000
"""GuideLLM takes the completion of a turn, and then the time for the turns behind it, one after the other."""
_NONE_KEPT: Final = (
    "GuideLLM's report keeps none of its {total} requests, so there is nothing to judge: run GuideLLM again without "
    "`sample_size` in `--metrics`, and with the output `kind=json`"
)


def sniff(head: Head) -> bool:
    """Tell whether a file is GuideLLM's report, as JSON or as YAML, which is refused."""
    return "metadata.guidellm_version" in head.keys or _is_yaml(head.text)


def read(path: Path, chunks: Iterable[bytes], skipped: Skipped) -> Iterator[Assembled]:
    """Yield the requests of all benchmarks in a report.

    Raises:
        InputError: the report is YAML, or keeps none of its requests.
    """
    model: str | None = None
    number = 0
    kept = unkept = 0
    rest = iter(chunks)
    first = next(rest, b"")
    if _is_yaml(first):
        raise InputError(f"{path}: GuideLLM's report as YAML: run `guidellm export {path.name} --output kind=json`")
    benchmark = _Benchmark(wanted=skipped.wants_run(path))
    for item in items(path, _again(first, rest), skipped, _ENTERED):
        if item.path == "config":
            model = text(member(item.value, "spec", "backend", "model"))
        elif item.path == f"{_BENCHMARK}.scheduler_metrics":
            benchmark.measured = _measured(item.value)
        elif item.path == f"{_BENCHMARK}.metrics":
            benchmark.totals = member(item.value, "request_totals")
        elif item.path == f"{_BENCHMARK}.config":
            benchmark.rate = stated_load(member(item.value, "strategy", "rate"))
        elif item.path in _LISTS:
            number += 1
            if not benchmark.wanted:
                continue
            try:
                benchmark.add(number, item.value, _LISTS[item.path], model)
            except EntryError as error:
                benchmark.kept[_LISTS[item.path]] += 1
                skipped.bad(path, f"request {number} at byte {item.offset}", error)
                continue
            if benchmark.measured is not None:
                yield from benchmark.taken(skipped)
        elif item.path == _BENCHMARK and item.value is END:
            yield from benchmark.taken(skipped)
            if benchmark.wanted:
                kept += benchmark.kept.total()
                unkept += benchmark.count_unkept(skipped)
            skipped.end_run(path, benchmark.load_req_s)
            benchmark = _Benchmark(wanted=skipped.wants_run(path))
    yield from benchmark.taken(skipped)  # the file's end cuts the benchmark
    if not number or (unkept and not kept):
        raise InputError(f"{path}: {_NONE_KEPT.format(total=unkept)}")


@dataclass(slots=True)
class _Timed:
    """A request's stream, and when it began and ended (unix ns), as GuideLLM compares it with the measured time."""

    stream: Assembled
    kept_in: str
    begin_ns: int
    end_ns: int | None


@dataclass(slots=True)
class _Benchmark:
    """One benchmark of a report while it is read: `measured` is the time that it measured, unix ns, inclusive."""

    wanted: bool
    rate: float | None = None
    """The rate of its strategy, requests/s."""
    measured: tuple[int, int] | None = None
    totals: Any = None
    """Its numbers of requests in the measured time, by the names of its lists."""
    kept: Counter[str] = field(default_factory=Counter)
    """The requests of each list that are in the file and in the measured time, broken ones included."""
    turns: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    """The end of each turn and the delay after it, ns, by conversation and node."""
    ends: list[tuple[int, int]] = field(default_factory=list)
    """The same in order of the ends, of turns that name no conversation."""
    _waiting: list[_Timed] = field(default_factory=list)

    @property
    def load_req_s(self) -> float | None:
        """Return its load: the rate of its strategy, else its requests per second of the measured time."""
        total = count(member(self.totals, "total"))
        if self.rate is not None or self.measured is None or not total:
            return self.rate
        return total * NS_PER_S / max(1, self.measured[1] - self.measured[0])

    def add(self, number: int, entry: Any, kept_in: str, model: str | None) -> None:
        """Add a request.

        Raises:
            EntryError: it cannot be used.
        """
        timings, info = member(entry, "info", "timings"), member(entry, "info")
        sent, due = member(timings, "request_start"), member(timings, "targeted_start")
        if sent is None and due is None:
            raise EntryError("neither request_start nor targeted_start: it was never sent")
        send_ns = nanoseconds(due if sent is None else sent, "request_start")
        resolved = [member(timings, name) for name in ("resolve_start", "resolve_end")]
        due_ns = send_ns if due is None else nanoseconds(due, "targeted_start")
        before = member(timings, "predecessor_completed")
        if before is not None:
            before_ns = nanoseconds(before, "predecessor_completed")
            due_ns = max(due_ns, before_ns + self._delay_before_ns(info, before_ns))
        commit_ns = min(send_ns, due_ns)
        firsts = [member(timings, name) for name in ("first_token_iteration", "first_output_token_iteration")]
        known = [nanoseconds(first, "first_token_iteration") for first in firsts if first is not None]
        end = member(timings, "request_end")
        status = member(info, "status")
        request = MeasuredRequest(
            FORM,
            text(member(entry, "request_id")) or number,
            send_ns=send_ns,
            commit_ns=commit_ns,
            end_ns=None if end is None else nanoseconds(end, "request_end"),
            outcome=_OUTCOMES.get(status if isinstance(status, str) else "", _ENDINGS[kept_in]),
            model=text(member(json_of(member(entry, "request_args")), "body", "model")) or model,
            input_tokens=count(member(entry, "input_metrics", "text_tokens")),
        )
        stream = request.untimed(max(0, min(known) - commit_ns) / NS_PER_S if known else None)
        begin_ns = send_ns if sent is not None or resolved[0] is None else nanoseconds(resolved[0], "resolve_start")
        ended_ns = request.end_ns
        if ended_ns is None and resolved[1] is not None:
            ended_ns = nanoseconds(resolved[1], "resolve_end")
        self._waiting.append(_Timed(stream, kept_in, begin_ns, ended_ns))
        conversation, node = text(member(info, "conversation_id")), text(member(info, "node_id"))
        if conversation is not None and node is not None:
            self.turns[conversation, node] = (ended_ns or 0, _delay_ns(info))
        elif ended_ns is not None and resolved[1] is not None:
            insort(self.ends, (nanoseconds(resolved[1], "resolve_end"), _delay_ns(info)))

    def taken(self, skipped: Skipped) -> Iterator[Assembled]:
        """Yield the requests that wait, without those of the warm-up and the cool-down, which are counted."""
        for one in self._waiting:
            start_ns, stop_ns = self.measured or (one.begin_ns, one.begin_ns)
            if one.end_ns is not None and one.end_ns < start_ns:
                skipped.counts["warmup"] += 1
            elif one.begin_ns > stop_ns:
                skipped.counts["cooldown"] += 1
            else:
                self.kept[one.kept_in] += 1
                skipped.anomaly("token_times_not_kept")
                yield one.stream
        self._waiting = []

    def count_unkept(self, skipped: Skipped) -> int:
        """Count the requests that the totals include and the file does not keep; return their number."""
        unkept = 0
        for name, outcome in _ENDINGS.items():
            missing = (count(member(self.totals, name)) or 0) - self.kept[name]
            if missing > 0:
                skipped.not_in_sample(outcome, missing)
                unkept += missing
        return unkept

    def _delay_before_ns(self, info: Any, before_ns: int) -> int:
        """Return the delay after the turn before, which completed at `before_ns`.

        It is that of the last parent to end; without names that of the turn whose end was seen at that time; of a turn
        that is not in the file it is taken to be the request's own.
        """
        conversation, parents = text(member(info, "conversation_id")), member(info, "parent_node_ids")
        if conversation is not None and isinstance(parents, list):
            names = [parent for parent in parents if isinstance(parent, str)]
            known = [self.turns[conversation, name] for name in names if (conversation, name) in self.turns]
            if known:
                return max(known)[1]
        place = bisect_right(self.ends, (before_ns, MAX_TIME_NS))
        if conversation is None and place and before_ns - self.ends[place - 1][0] <= _SEEN_WITHIN_NS:
            return self.ends[place - 1][1]
        return _delay_ns(info)


def _measured(metrics: Any) -> tuple[int, int] | None:
    """Return the measured time that a benchmark's `scheduler_metrics` state, None if they state none."""
    start, end = member(metrics, "measure_start_time"), member(metrics, "measure_end_time")
    try:
        start_ns, end_ns = nanoseconds(start, "measure_start_time"), nanoseconds(end, "measure_end_time")
    except EntryError:
        return None
    return (start_ns, end_ns) if 0 < start_ns <= end_ns else None


def _delay_ns(info: Any) -> int:
    delay = member(info, "settings", _DELAY)
    return 0 if delay is None else max(0, nanoseconds(delay, _DELAY))


def _is_yaml(head: bytes) -> bool:
    return b"guidellm_version:" in head and not head.lstrip().startswith(b"{")


def _again(first: bytes, rest: Iterable[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest
