"""The command of the audit on Spark: inputs to folders of Parquet and a summary."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from pyspark import StorageLevel
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from otel_llm.audit.spark.batch import in_order, judge_by, read_recordings, read_streams, settings
from otel_llm.audit.spark.streaming import follow, follow_recordings, follow_streams
from otel_llm.config.yaml_file import ConfigError
from otel_llm.formats.io.skipped import HARMLESS
from otel_llm.shared.printable import printable_lines
from otel_llm.slo.classes import UnknownClassError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, Row

    from otel_llm.slo.classes import SloClasses

EXAMPLES = """
\b
Examples:
  python -m otel_llm.audit.spark /lake/journal --requests /lake/requests --windows /lake/windows
  python -m otel_llm.audit.spark s3a://lake/journal --to-streams s3a://lake/streams
  python -m otel_llm.audit.spark --from streams s3a://lake/streams --class voice
  python -m otel_llm.audit.spark /lake/journal --follow /lake/judged --every '1 minute'

\b
Where it runs is Spark's affair: this machine, or what spark-submit or spark-defaults.conf
say. Exit code: 0 fine; 2 bad usage, or an input or output that Spark cannot use.
"""
SHOWN = 20
"""Notes on files that are written to standard error."""


@click.command(epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--from",
    "file_format",
    type=click.Choice(["recordings", "streams"]),
    default="recordings",
    show_default=True,
    help="What the paths hold: recordings as `otel-llm audit` reads them, or Parquet of recorded streams.",
)
@click.option(
    "--slo", type=click.Path(path_type=Path), metavar="F", help="SLO classes; the shipped ones where not given."
)
@click.option("--class", "class_name", metavar="NAME", help="Judge every request by this class.")
@click.option("--window", default="10s", show_default=True, metavar="LENGTH", help="Length of a window, as 10s or 1m.")
@click.option("--requests", metavar="OUT", help="Write a row for each request: a new folder of Parquet.")
@click.option("--windows", metavar="OUT", help="Write a row for each window and group: a new folder of Parquet.")
@click.option("--to-streams", metavar="OUT", help="Write the streams, put together: Parquet for further audits.")
@click.option(
    "--follow", "out", metavar="OUT", help="Follow the folder PATH into the folder OUT, and go on where it was."
)
@click.option("--every", metavar="TIME", help="With --follow: look again so often, as '1 minute'; else once.")
@click.option(
    "--patience",
    default="10 minutes",
    show_default=True,
    metavar="TIME",
    help="With --follow: how long to wait for what is missing of a request, by the recordings' clock.",
)
def audit(
    paths: tuple[str, ...],
    file_format: str,
    slo: Path | None,
    class_name: str | None,
    window: str,
    requests: str | None,
    windows: str | None,
    to_streams: str | None,
    out: str | None,
    every: str | None,
    patience: str,
) -> None:
    """Judge recorded streams on Apache Spark, with the same arithmetic as `otel-llm audit`.

    PATH is a file, folder or pattern, wherever Spark can read. The summary is printed as a JSON object.
    """
    try:
        classes, window_ns = settings(slo, class_name, window)
    except (ConfigError, UnknownClassError, ValueError) as error:
        raise click.UsageError(str(error)) from error
    session = SparkSession.builder.appName("otel-llm audit").getOrCreate()
    try:
        if out is None:
            _batch(session, paths, file_format, (requests, windows, to_streams), classes, window_ns)
        elif len(paths) > 1 or requests or windows or to_streams:
            raise click.UsageError("--follow takes one folder, and writes requests and windows into its own OUT")
        else:
            recorded = file_format == "recordings"
            read = (
                follow_recordings(session, paths[0], patience=patience)
                if recorded
                else follow_streams(session, paths[0])
            )
            follow(read, out, slo=classes, window=window, every=every).awaitTermination()
    except (AnalysisException, ValueError) as error:  # no such path, a folder that is there, other classes ...
        raise click.UsageError(str(error).partition("\n")[0]) from error


def _batch(
    session: SparkSession,
    paths: Sequence[str],
    file_format: str,
    outputs: tuple[str | None, str | None, str | None],
    classes: SloClasses,
    window_ns: int,
) -> None:
    requests, windows, to_streams = outputs
    notes: list[Row] = []
    if file_format == "recordings":
        recordings = read_recordings(session, *paths)
        recordings.records.persist(StorageLevel.DISK_ONLY)  # read and decoded once
        notes = recordings.notes.collect()
        _show(notes)
        streams = recordings.streams
    else:
        streams = read_streams(session, *paths)
    judged = judge_by(streams.persist(StorageLevel.DISK_ONLY), classes, window_ns)
    found: list[tuple[str | None, DataFrame]] = [
        (to_streams, streams),
        (requests, in_order(judged.requests)),
        (windows, judged.windows.orderBy("window_start_unix_nano")),
    ]
    for path, frame in found:
        if path is not None:
            frame.write.parquet(path)
    skipped = sum(note["number"] for note in notes if _broken(note["reason"]))
    click.echo(json.dumps(judged.summary(skipped), indent=2))


def _broken(reason: str) -> bool:
    """Tell whether a note counts in `skipped`, as in the local audit: broken records and cut ends."""
    odd = reason == "ignored" or reason.startswith(("refused.", "anomaly."))
    return not odd and (reason == "torn_tail" or reason not in HARMLESS)


def _show(notes: Sequence[Row]) -> None:
    for note in notes[:SHOWN]:
        places = note["note"] or note["file"]
        print(printable_lines(f"{note['number']} x {note['reason']}: {places}"), file=sys.stderr)
    if len(notes) > SHOWN:
        print(f"and {len(notes) - SHOWN} notes more", file=sys.stderr)
