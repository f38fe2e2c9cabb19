"""Statements on what an audit could not read, judge or place in time: a report without them claims too much."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_llm.audit.kernel.judged_columns import column_of, texts_of
from otel_llm.formats.io.skipped import HARMLESS
from otel_llm.shared.formatting import plural

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from otel_llm.audit.kernel.judged_columns import Rows

_MEANINGS: Final = {
    "torn_tail": "files whose last record is cut off (normal after a crash)",
    "bad_crc": "records whose checksum is wrong",
    "bad_record": "records that cannot be decoded",
    "other_signal": "exports of metrics, logs or profiles in the same files",
    "unfinished_zst": "unfinished compressed journals whose plain file was read instead",
    "ignored": "spans that are no inference of a known kind",
    "duplicate_segments": "segments received more than once",
    "duplicate_requests": "request spans received more than once",
    "missing_empty_segments": "segments without tokens that did not arrive (nothing lost)",
    "skewed_tokens": "tokens timed before their commit, counted as at the commit",
    "unknown_class": "requests that name an SLO class the file does not define",
    "not_spread": "requests too long to be spread over all their windows",
    "unknown_file": "files of a folder that hold no recording of a known format",
    "unreadable_file": "files that cannot be read",
    "no_request": "files of a known format that hold no request",
    "zone_assumed": "times without a zone, read as UTC",
    "repeated_file": "files of a folder whose requests another of its files has more exactly",
    "warmup": "requests of a benchmark's warm-up, left out",
    "context_overflow": "requests beyond the model's context that the benchmark does not count, left out",
    "cooldown": "requests of a benchmark's cool-down, left out",
    "anomaly.clock_unanchored": "requests timed by a clock without an anchor: their times are no dates",
    "anomaly.no_start_times": (
        "requests whose start is not in the file: each stands at 0 of its own axis, load and windows say nothing"
    ),
    "anomaly.end_unknown": (
        "failed requests whose time of failure is not in the file: met is false, nothing else is judged"
    ),
    "anomaly.token_times_not_kept": "requests whose token times the tool did not keep",
    "anomaly.not_in_sample": "requests that the tool counted and did not keep: the others are a sample",
    "anomaly.outcome_unknown": "requests taken for completed because the file does not say how they ended",
    "anomaly.failures_not_kept": "requests of a tool that leaves failed ones out of its file",
    "anomaly.framing_counted": (
        "requests whose framing chunks (role, usage, end) could not be distinguished from tokens"
    ),
    "anomaly.failures_do_not_add_up": "failures that the tool counted otherwise than its requests say",
    "anomaly.events_maybe_dropped": (
        "spans of others with as many events as an SDK keeps, without a count of dropped ones: not judged"
    ),
    "anomaly.end_before_start": "requests that end before they begin: their end is taken to be their last token",
    "anomaly.segment_after_end": "segments numbered behind the last one of their stream, without effect",
    "shifted": "streams whose clock is off by more than the lateness, shifted into their windows",
}
_NOT_BROKEN: Final = HARMLESS - {"torn_tail"}
_LEFT_OUT: Final = ("warmup", "cooldown", "context_overflow")
_REFUSED: Final = "refused."
NO_START_TIMES: Final = "anomaly.no_start_times"
NOT_IN_SAMPLE: Final = "anomaly.not_in_sample"
_ANOMALY: Final = "anomaly."


def timeless(rows: Rows, counts: Mapping[str, int]) -> bool:
    """Tell whether nothing can be said per second: the requests are a sample, or none has a time of sending."""
    if counts.get(NOT_IN_SAMPLE):
        return True
    starts = column_of(rows, "start_unix_nano")
    return bool(counts.get(NO_START_TIMES)) and not starts.values[starts.known].any()


def sampled(rows: Rows, counts: Mapping[str, int]) -> str:
    """Return what holds of figures whose requests are a sample, as a clause, "" if they are all."""
    more = counts.get(NOT_IN_SAMPLE, 0)
    if not more:
        return ""
    return f"the figures are those of a sample, {len(rows):,} of {len(rows) + more:,} requests, without rates"


def judged(rows: Rows) -> int:
    """Return the number of judged requests."""
    return len(rows) - int((_lacking(rows) | _foreign(rows)).sum())


def comparable(rows: Rows) -> bool:
    """Tell whether any request can be compared with another recording's.

    It was judged, or its span states the time of the first token.
    """
    return bool((~_lacking(rows) & (~_foreign(rows) | column_of(rows, "ttft_s").known)).any())


def unjudged(rows: Rows) -> str:
    """Return why an input without a judged request shows nothing."""
    if not len(rows):
        return "there is no request in the input, so nothing was shown"
    return f"no judged request among {plural(len(rows), 'request')} of the input, so nothing was shown"


def statement(rows: Rows, skipped: Mapping[str, int], counts: Mapping[str, int]) -> str:
    """Return one sentence on how much of the input could be judged, and what was lost."""
    outcomes = texts_of(rows, "outcome")
    lacking, foreign = int(_lacking(rows).sum()), int(_foreign(rows).sum())
    parts = [f"{judged(rows):,} of {plural(len(rows), 'request')} could be judged"]
    if lacking:
        parts.append(f"{lacking:,} lack tokens or their start and are counted as incomplete")
    if foreign:
        parts.append(f"{foreign:,} came from spans that do not say when tokens arrived")
    lost = int((outcomes == "lost").sum())
    if lost:
        parts.append(f"the end of {lost:,} was never seen (lost)")
    broken = sum(number for reason, number in skipped.items() if reason not in _NOT_BROKEN)
    unkept = counts.get(NOT_IN_SAMPLE, 0)
    if unkept:
        parts.append(
            f"the requests are a sample: {unkept:,} more are in the tool's totals and not in the file, so every figure "
            "but the numbers of requests and of failures is of the sample, and there are no rates"
        )
    left_out = sum(skipped.get(name, 0) for name in _LEFT_OUT)
    if left_out:
        parts.append(f"{plural(left_out, 'request')} left out as the benchmark leaves them out")
    if broken or not (unkept or left_out):
        parts.append(f"{plural(broken, 'broken or cut record')} skipped" if broken else "nothing was skipped")
    repeated = counts.get("duplicate_segments", 0) + counts.get("duplicate_requests", 0)
    if repeated:
        parts.append(f"{plural(repeated, 'repetition')} without effect")
    return "; ".join(parts) + "."


def _lacking(rows: Rows) -> NDArray[np.bool_]:
    coverage = column_of(rows, "coverage")
    return ~column_of(rows, "start_unix_nano").known | (coverage.known & (coverage.values < 1))


def _foreign(rows: Rows) -> NDArray[np.bool_]:
    return ~column_of(rows, "tokens").known


def details(skipped: Mapping[str, int], counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return every count that is not zero with its meaning, skipped parts first."""
    found: list[tuple[str, int]] = []
    for source in (skipped, counts):
        found += [(meaning(name), number) for name, number in sorted(source.items()) if number]
    return found


def meaning(name: str) -> str:
    """Return the meaning of a counter."""
    if name in _MEANINGS:
        return _MEANINGS[name]
    if name.startswith(_REFUSED):
        return f"spans refused: {name.removeprefix(_REFUSED).replace('_', ' ')}"
    if name.startswith(_ANOMALY):
        return f"oddities in spans that were kept: {name.removeprefix(_ANOMALY).replace('_', ' ')}"
    return name.replace("_", " ")
