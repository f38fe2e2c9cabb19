"""`benchmarks.json` of GuideLLM: the times of each request's first and last token, and no others.

Form: GuideLLM 0.8.1, report version 2. Wall clock, seconds. Times between are not stored, so the rows have the time to
the first token and the end, and every judged column is null. The commit is `targeted_start`, when the request was
due.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_llm.readers.formats.bench.measured import (
    NS_PER_S,
    EntryError,
    MeasuredRequest,
    count,
    json_of,
    member,
    nanoseconds,
    text,
)
from otel_llm.readers.io.json_walk import items
from otel_llm.readers.records import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from otel_llm.readers.assemble.resolved import Assembled
    from otel_llm.readers.formats.form import Head
    from otel_llm.readers.io.skipped import Skipped

FORM: Final = "guidellm"
_LISTS: Final = {name: f"benchmarks[].requests.{name}[]" for name in ("successful", "errored", "incomplete")}
_ENTERED: Final = frozenset(
    {"", "benchmarks", "benchmarks[]", "benchmarks[].requests", *(path.removesuffix("[]") for path in _LISTS.values())}
)
_OUTCOMES: Final = {"completed": "completed", "errored": "error", "cancelled": "cancelled"}
_ENDINGS: Final = {"successful": "completed", "errored": "error", "incomplete": "cancelled"}


def sniff(head: Head) -> bool:
    """Tell whether a file is GuideLLM's report, as JSON or as YAML, which is refused."""
    return "metadata.guidellm_version" in head.keys or _is_yaml(head.text)


def read(path: Path, chunks: Iterable[bytes], skipped: Skipped) -> Iterator[Assembled]:
    """Yield the requests of all benchmarks in a report.

    Raises:
        InputError: the report is YAML.
    """
    model: str | None = None
    number = 0
    named = {place: name for name, place in _LISTS.items()}
    pieces = iter(chunks)
    first = next(pieces, b"")
    if _is_yaml(first):
        raise InputError(f"{path}: GuideLLM's report as YAML: run `guidellm export {path.name} --output kind=json`")
    for item in items(path, _again(first, pieces), skipped, _ENTERED):
        if item.path == "config":
            model = text(member(item.value, "spec", "backend", "model"))
        elif item.path in named:
            number += 1
            try:
                one = _stated(number, item.value, named[item.path], model)
            except EntryError as error:
                skipped.bad(path, f"request {number} at byte {item.offset}", error)
                continue
            skipped.anomaly("token_times_not_kept")
            yield one


def _stated(number: int, entry: Any, kept_in: str, model: str | None) -> Assembled:
    timings = member(entry, "info", "timings")
    sent, due = member(timings, "request_start"), member(timings, "targeted_start")
    if sent is None and due is None:
        raise EntryError("neither request_start nor targeted_start: it was never sent")
    send_ns = nanoseconds(due if sent is None else sent, "request_start")
    commit_ns = send_ns if due is None else min(send_ns, nanoseconds(due, "targeted_start"))
    firsts = [member(timings, name) for name in ("first_token_iteration", "first_output_token_iteration")]
    known = [nanoseconds(first, "first_token_iteration") for first in firsts if first is not None]
    end = member(timings, "request_end")
    status = member(entry, "info", "status")
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
    return request.untimed(max(0, min(known) - commit_ns) / NS_PER_S if known else None)


def _is_yaml(head: bytes) -> bool:
    return b"guidellm_version:" in head and not head.lstrip().startswith(b"{")


def _again(first: bytes, rest: Iterable[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest
