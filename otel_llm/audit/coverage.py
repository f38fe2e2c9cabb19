"""What an audit could not read, judge or place, in words: a report that does not say so claims too much."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_llm.audit.words import plural
from otel_llm.slo.summary import incomplete

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_llm.readers.rows import Cell

_WORDS: Final = {
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
    "shifted": "streams whose clock is off by more than the lateness, shifted into their windows",
}
_NOT_BROKEN: Final = frozenset({"other_signal", "unfinished_zst"})
_REFUSED: Final = "refused."
_ANOMALY: Final = "anomaly."


def statement(rows: Sequence[Mapping[str, Cell]], skipped: Mapping[str, int], counts: Mapping[str, int]) -> str:
    """Say in one sentence how much of what was found could be judged, and what was lost on the way."""
    lacking = sum(incomplete(row) for row in rows)
    foreign = sum(row["tokens"] is None for row in rows)
    judged = len(rows) - lacking - foreign
    parts = [f"{judged:,} of {plural(len(rows), 'request')} could be judged"]
    if lacking:
        parts.append(f"{lacking:,} lack tokens or their start and are counted as incomplete")
    if foreign:
        parts.append(f"{foreign:,} came from spans that do not say when tokens arrived")
    lost = sum(row["outcome"] == "lost" for row in rows)
    if lost:
        parts.append(f"the end of {lost:,} was never seen (lost)")
    broken = sum(number for reason, number in skipped.items() if reason not in _NOT_BROKEN)
    parts.append(f"{plural(broken, 'broken or cut record')} skipped" if broken else "nothing was skipped")
    repeated = counts.get("duplicate_segments", 0) + counts.get("duplicate_requests", 0)
    if repeated:
        parts.append(f"{plural(repeated, 'repetition')} without effect")
    return "; ".join(parts) + "."


def details(skipped: Mapping[str, int], counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return every count that is not zero with its meaning, what was skipped first."""
    found: list[tuple[str, int]] = []
    for source in (skipped, counts):
        found += [(words(name), number) for name, number in sorted(source.items()) if number]
    return found


def words(name: str) -> str:
    """Return what a counter counts."""
    if name.startswith(_REFUSED):
        return f"spans refused: {name.removeprefix(_REFUSED).replace('_', ' ')}"
    if name.startswith(_ANOMALY):
        return f"oddities in spans that were kept: {name.removeprefix(_ANOMALY).replace('_', ' ')}"
    return _WORDS.get(name, name.replace("_", " "))
