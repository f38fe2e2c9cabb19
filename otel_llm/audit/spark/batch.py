"""The audit of recorded streams as Spark DataFrames: requests, windows, summary."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

from otel_llm.audit.input.stream_batch import STREAMS
from otel_llm.audit.kernel.judge_batch import JUDGED
from otel_llm.audit.kernel.window_totals import PARTIALS, Group
from otel_llm.audit.load import LATENESS_NS
from otel_llm.audit.spark import decoding, kernels, totals
from otel_llm.audit.spark.frames import spark_schema, through
from otel_llm.config.durations import parse_duration_ns
from otel_llm.rules.files.slo_file import load_slo

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from otel_llm.slo.classes import SloClasses


@dataclass(frozen=True)
class Judged:
    """The result of an audit, as DataFrames that Spark computes lazily.

    `requests`: the columns of `kernel.JUDGED`, those of `--requests` and four more; `partials`: parts of windows, of
    `window_totals.PARTIALS`; in no order. Each is computed from the input again: keep those used twice (`persist`, or
    write them).
    """

    requests: DataFrame
    partials: DataFrame
    classes: SloClasses
    window_ns: int

    @property
    def windows(self) -> DataFrame:
        """Return the rows of `--windows`: the parts of each window and group added up, exactly."""
        by_window = self.partials.repartition("window_start_unix_nano", *Group._fields)
        return through(by_window, partial(kernels.window_rows, window_ns=self.window_ns), kernels.WINDOW_ROWS)

    def summary(self, skipped: int = 0) -> dict[str, Any]:
        """Return the object of `audit --format json`; runs a job.

        Counts, shares and sums are those of the local audit, to the bit; the percentiles and the fluid token rate come
        from mergeable sketches, within 1 % of its nearest ranks. `skipped` is the number of broken records.
        """
        parts = through(self.requests, partial(totals.totals, classes=self.classes), totals.TOTALS)
        merged = through(parts.repartition("slo_class", "measured_at"), totals.merged, totals.TOTALS)
        rows = [row.asDict(recursive=True) for row in merged.collect()]
        return totals.summary(rows, self.classes, skipped)


@dataclass(frozen=True)
class Recordings:
    """The contents of files of recordings: `records` are those of `decoding.RECORDS`."""

    records: DataFrame

    @property
    def streams(self) -> DataFrame:
        """Return the recorded streams, as STREAMS: every request assembled where the shuffle brings its segments."""
        spans = self.records.where("kind != 'note'").repartition(*decoding.KEY)
        return through(spans.sortWithinPartitions(*decoding.KEY, "file", "number"), decoding.assemble, STREAMS)

    @property
    def notes(self) -> DataFrame:
        """Return skipped parts and anomalies, a row for each file and reason: `decoding.NOTES`."""
        return through(self.records.where("kind = 'note'"), decoding.notes, decoding.NOTES)


def read_streams(session: SparkSession, *paths: str) -> DataFrame:
    """Return the streams in Parquet files of STREAMS: files, folders or patterns, wherever Spark can read."""
    return session.read.schema(spark_schema(STREAMS)).parquet(*paths)


def read_recordings(session: SparkSession, *paths: str) -> Recordings:
    """Return the contents of files that the local audit reads: journals, the Collector's files and all other formats.

    Files, folders (with all folders in them) or patterns, wherever Spark can read. A file is read by one task, whole in
    its memory, at most 2 GB. An unreadable file gives a note, and nothing else.
    """
    return recordings_of(session.read.format("binaryFile").option("recursiveFileLookup", "true").load(list(paths)))


def recordings_of(files: DataFrame) -> Recordings:
    """Return the contents of files, given as Spark's `binaryFile` gives them."""
    return Recordings(through(files.select("path", "content"), decoding.records, decoding.RECORDS))


def judge(
    streams: DataFrame,
    *,
    slo: str | Path | SloClasses | None = None,
    class_name: str | None = None,
    window: str | float = "10s",
) -> Judged:
    """Audit recorded streams (of STREAMS), as `otel_llm.audit.load` does.

    `slo` is a file of SLO classes, read here, or the classes (the shipped ones if it is None); `class_name` judges
    every request by that class; `window` is a duration as `10s` or in seconds. Runs nothing yet.

    Raises:
        ConfigError: the SLO file is wrong.
        UnknownClassError: the file has no class of that name.
        ValueError: the window is no duration above zero.
    """
    return judge_by(streams, *settings(slo, class_name, window))


def settings(
    slo: str | Path | SloClasses | None, class_name: str | None, window: str | float
) -> tuple[SloClasses, int]:
    """Return the classes and the length of a window in ns for the parameters of `judge`; raises as `judge` does."""
    window_ns = parse_duration_ns(window)
    if window_ns <= 0:
        raise ValueError(f"a window of {window!r} is empty; write a duration above zero, as 10s")
    classes = load_slo(slo) if slo is None or isinstance(slo, str | Path) else slo
    return (classes if class_name is None else classes.judging(class_name)), window_ns


def judge_by(streams: DataFrame, classes: SloClasses, window_ns: int) -> Judged:
    """Audit recorded streams by classes and in windows of so many ns."""
    parts = partial(kernels.partials, classes=classes, window_ns=window_ns, lateness_ns=LATENESS_NS)
    return Judged(
        requests=through(streams, partial(kernels.judged, classes=classes), JUDGED),
        partials=through(streams, parts, PARTIALS),
        classes=classes,
        window_ns=window_ns,
    )


def in_order(requests: DataFrame) -> DataFrame:
    """Return judged requests in the order of `--requests`: start (unknown last), trace id, span id, choice, tenant."""
    return requests.orderBy(
        f.col("start_unix_nano").asc_nulls_last(), "trace_id", "span_id", f.col("choice").asc_nulls_last(), "tenant"
    )
