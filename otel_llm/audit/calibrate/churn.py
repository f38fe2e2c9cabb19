"""Recorded readers: which left while they waited, left while they read, or complained."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from otel_llm.audit.calibrate.alpha_fit import Fits, TooLittleError, fit_complaints, fit_leaving
from otel_llm.audit.kernel.samples import reals
from otel_llm.slo.batch.many import penalty_shape

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    import pyarrow as pa

    from otel_llm.audit.calibrate.alpha_fit import Fit
    from otel_llm.audit.kernel.samples import Bools, Floats
    from otel_llm.slo.classes import SloClasses

LEFT: Final = ("cancelled", "abandoned")
"""Outcomes caused by the reader's side."""
MOST_BINS: Final = 8
_TRUE: Final = {"1", "true", "yes", "t", "y"}
_FALSE: Final = {"0", "false", "no", "f", "n", ""}


class ComplaintsError(ValueError):
    """A file of complaints was refused; the text names it and the line."""


@dataclass(frozen=True, slots=True)
class Readers:
    """R requests with known waits of their readers, (R,) each.

    `idle_s`: idle time by the end; `time_s`: from commit to end; `left_waiting`, `left_reading`: the reader's side
    ended it, with the reader out of text or not. `worth_tokens`: mean tokens read of the completed ones, None without.
    `left_out`: requests that cannot be judged, or whose end was not seen.
    """

    trace_ids: tuple[str, ...]
    idle_s: Floats
    time_s: Floats
    left_waiting: Bools
    left_reading: Bools
    worth_tokens: float | None
    left_out: int

    def __len__(self) -> int:
        return len(self.idle_s)


def readers_of(table: pa.Table, classes: SloClasses, measured_at: str | None = None) -> Readers:
    """Return the readers of a table of `kernel.JUDGED`, at one place of measurement.

    Without `measured_at`: the client's view if there is one, or the only one. A reader was waiting at the end e
    if their idle time was growing then: l = e - (start + (n + 1) P) > 0 (metrics.md, "in flight").

    Raises:
        ValueError: nothing is recorded at that place, or it is ambiguous.
    """
    places = sorted(set(table["measured_at"].to_pylist()))
    if measured_at is None:
        if "client" not in places and len(places) > 1:
            raise ValueError(f"recorded at {', '.join(places)}: say which with --measured-at")
        measured_at = "client" if "client" in places else (places or ["client"])[0]
    if measured_at not in places:
        raise ValueError(f"nothing was measured at {measured_at}: recorded is {', '.join(places) or 'nothing'}")
    mine = table.filter(np.array(table["measured_at"].to_pylist()) == measured_at)
    known = mine["idle_s"].is_valid().to_numpy() & mine["e2e_s"].is_valid().to_numpy()
    some = mine.filter(known)
    slos = {slo.name: slo for slo in classes.classes}
    of = [slos[name] for name in some["slo_class"].to_pylist()]
    start = np.array([slo.start_ns for slo in of], np.int64)
    pace = np.array([slo.pace_ns for slo in of], np.int64)
    idle, time, read = (reals(some, name) for name in ("idle_s", "e2e_s", "tokens_read"))
    growing = np.rint(time * 1e9).astype(np.int64) - start - (read.astype(np.int64) + 1) * pace
    idle_ns = np.rint(idle * 1e9).astype(np.int64)
    outcome = np.array(some["outcome"].to_pylist(), dtype=object)
    left = np.isin(outcome, LEFT)
    waiting = (idle_ns > 0) & (growing == idle_ns)
    done = read[(outcome == "completed") & (read > 0)]
    return Readers(
        trace_ids=tuple(some["trace_id"].to_pylist()),
        idle_s=idle,
        time_s=time,
        left_waiting=left & waiting,
        left_reading=left & ~waiting,
        worth_tokens=float(done.mean()) if len(done) else None,
        left_out=len(mine) - len(some),
    )


def read_complaints(path: Path) -> set[str]:
    """Return the trace ids of complaints in a CSV file.

    Its header has `trace_id`, and may have `complained` (true or false); other columns are ignored. Raises
    ComplaintsError.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file)
            if "trace_id" not in (rows.fieldnames or ()):
                raise ComplaintsError(f"{path}:1: no column trace_id; begin with a header line that names it")
            found: set[str] = set()
            for row in rows:
                says = (row.get("complained", "true") or "").strip().lower()
                if says not in _TRUE | _FALSE:
                    raise ComplaintsError(f"{path}:{rows.line_num}: {says!r} is neither true nor false")
                if says in _TRUE and row["trace_id"]:
                    found.add(row["trace_id"].strip().lower())
            return found
    except OSError as error:
        raise ComplaintsError(f"{path}: {error.strerror or error}; name a CSV file that can be read") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise ComplaintsError(f"{path}: no CSV in UTF-8 ({error})") from error


def calibrate(readers: Readers, complaints: Collection[str] | None = None) -> Fits:
    """Fit every shape to the readers who left, or who complained if their trace ids are given.

    Raises:
        TooLittleError: too few left while waiting, or complained, or none waited.
    """
    if complaints is None:
        return fit_leaving(readers.idle_s, readers.time_s, readers.left_waiting, readers.left_reading)
    return fit_complaints(readers.idle_s, complained(readers, complaints))


def complained(readers: Readers, complaints: Collection[str]) -> Bools:
    """Return which readers complained, (R,) bool."""
    return np.array([one in complaints for one in readers.trace_ids], np.bool_)


def worth(readers: Readers, tokens: float | None = None) -> float:
    """Return the worth of a lost reader in tokens: `tokens`, or the mean of the completed replies.

    Raises:
        TooLittleError: no reply was completed.
    """
    if tokens is not None:
        return tokens
    if readers.worth_tokens is None:
        raise TooLittleError(
            "no reply was completed, so that the worth of one is not known: say it with --worth TOKENS"
        )
    return readers.worth_tokens


def churn_by_idle(readers: Readers, fit: Fit) -> list[dict[str, Any]]:
    """Return, by ranges of idle time, the readers who left in them and the number that the fit expects.

    Ranges hold about equally many of those who left while waiting. `idle_from_s`, `idle_to_s`; `waited_s`: seconds
    that readers spent waiting there; `left` and `expected`: readers.
    """
    at = np.sort(readers.idle_s[readers.left_waiting])
    inner = np.quantile(at, np.arange(1, MOST_BINS) / MOST_BINS, method="inverted_cdf")
    edges = np.unique(np.concatenate([[0.0], inner, [readers.idle_s.max()]]))
    rows = []
    for low, high in pairwise(edges):
        upper = np.clip(readers.idle_s, low, high)
        waited = float((upper - low).sum())
        owed = float((penalty_shape(upper, fit.penalty) - penalty_shape(np.full_like(upper, low), fit.penalty)).sum())
        rows.append(
            {
                "idle_from_s": float(low),
                "idle_to_s": float(high),
                "waited_s": waited,
                "left": int(np.count_nonzero((at > low) & (at <= high))),
                "expected": fit.base * waited + fit.beta * owed,
            }
        )
    return rows
